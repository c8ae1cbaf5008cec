"""Made by tools/make_stubs.py from the operator records; do not edit."""

from collections.abc import Sequence
from typing import Any

from .ndarray import NDArray

def Activation(
    data: NDArray | None = ...,
    act_type: str | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def BatchNorm(
    data: NDArray | None = ...,
    gamma: NDArray | None = ...,
    beta: NDArray | None = ...,
    moving_mean: NDArray | None = ...,
    moving_var: NDArray | None = ...,
    eps: float | None = ...,
    momentum: float | None = ...,
    fix_gamma: bool | None = ...,
    use_global_stats: bool | None = ...,
    output_mean_var: bool | None = ...,
    axis: int | None = ...,
    cudnn_off: bool | None = ...,
    min_calib_range: float | None = ...,
    max_calib_range: float | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> Any: ...
def BlockGrad(
    data: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def Cast(
    data: NDArray | None = ...,
    dtype: Any = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def Concat(
    *data: NDArray | Sequence[NDArray],
    dim: int | None = ...,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def Convolution(
    data: NDArray | None = ...,
    weight: NDArray | None = ...,
    bias: NDArray | None = ...,
    kernel: int | Sequence[int] | None = ...,
    stride: int | Sequence[int] | None = ...,
    dilate: int | Sequence[int] | None = ...,
    pad: int | Sequence[int] | None = ...,
    num_filter: int | None = ...,
    num_group: int | None = ...,
    workspace: int | None = ...,
    no_bias: bool | None = ...,
    cudnn_tune: str | None = ...,
    cudnn_off: bool | None = ...,
    layout: str | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def Crop(
    *data: NDArray | Sequence[NDArray],
    offset: int | Sequence[int] | None = ...,
    h_w: int | Sequence[int] | None = ...,
    center_crop: bool | None = ...,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def Custom(
    data: NDArray | None = ...,
    op_type: str | None = ...,
    options: Any = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> Any: ...
def Deconvolution(
    data: NDArray | None = ...,
    weight: NDArray | None = ...,
    bias: NDArray | None = ...,
    kernel: int | Sequence[int] | None = ...,
    stride: int | Sequence[int] | None = ...,
    dilate: int | Sequence[int] | None = ...,
    pad: int | Sequence[int] | None = ...,
    adj: int | Sequence[int] | None = ...,
    target_shape: int | Sequence[int] | None = ...,
    num_filter: int | None = ...,
    num_group: int | None = ...,
    workspace: int | None = ...,
    no_bias: bool | None = ...,
    cudnn_tune: str | None = ...,
    cudnn_off: bool | None = ...,
    layout: str | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def Dropout(
    data: NDArray | None = ...,
    p: float | None = ...,
    mode: str | None = ...,
    axes: int | Sequence[int] | None = ...,
    cudnn_off: bool | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def ElementWiseSum(
    *data: NDArray | Sequence[NDArray],
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def Embedding(
    data: NDArray | None = ...,
    weight: NDArray | None = ...,
    input_dim: int | None = ...,
    output_dim: int | None = ...,
    dtype: Any = ...,
    sparse_grad: bool | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def Flatten(
    data: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def FullyConnected(
    data: NDArray | None = ...,
    weight: NDArray | None = ...,
    bias: NDArray | None = ...,
    num_hidden: int | None = ...,
    no_bias: bool | None = ...,
    flatten: bool | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def GroupNorm(
    data: NDArray | None = ...,
    gamma: NDArray | None = ...,
    beta: NDArray | None = ...,
    num_groups: int | None = ...,
    eps: float | None = ...,
    output_mean_var: bool | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> Any: ...
def InstanceNorm(
    data: NDArray | None = ...,
    gamma: NDArray | None = ...,
    beta: NDArray | None = ...,
    eps: float | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def L2Normalization(
    data: NDArray | None = ...,
    eps: float | None = ...,
    mode: str | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def LRN(
    data: NDArray | None = ...,
    alpha: float | None = ...,
    beta: float | None = ...,
    knorm: float | None = ...,
    nsize: int | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def LayerNorm(
    data: NDArray | None = ...,
    gamma: NDArray | None = ...,
    beta: NDArray | None = ...,
    axis: int | None = ...,
    eps: float | None = ...,
    output_mean_var: bool | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> Any: ...
def LeakyReLU(
    data: NDArray | None = ...,
    gamma: NDArray | None = ...,
    act_type: str | None = ...,
    slope: float | None = ...,
    lower_bound: float | None = ...,
    upper_bound: float | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> Any: ...
def LinearRegressionOutput(
    data: NDArray | None = ...,
    label: NDArray | None = ...,
    grad_scale: float | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def LogisticRegressionOutput(
    data: NDArray | None = ...,
    label: NDArray | None = ...,
    grad_scale: float | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def MAERegressionOutput(
    data: NDArray | None = ...,
    label: NDArray | None = ...,
    grad_scale: float | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def MakeLoss(
    data: NDArray | None = ...,
    grad_scale: float | None = ...,
    valid_thresh: float | None = ...,
    normalization: str | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def Pad(
    data: NDArray | None = ...,
    mode: str | None = ...,
    pad_width: int | Sequence[int] | None = ...,
    constant_value: float | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def Pooling(
    data: NDArray | None = ...,
    kernel: int | Sequence[int] | None = ...,
    pool_type: str | None = ...,
    global_pool: bool | None = ...,
    cudnn_off: bool | None = ...,
    pooling_convention: str | None = ...,
    stride: int | Sequence[int] | None = ...,
    pad: int | Sequence[int] | None = ...,
    p_value: int | None = ...,
    count_include_pad: bool | None = ...,
    layout: str | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def Reshape(
    data: NDArray | None = ...,
    shape: int | Sequence[int] | None = ...,
    reverse: bool | None = ...,
    target_shape: int | Sequence[int] | None = ...,
    keep_highest: bool | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def SVMOutput(
    data: NDArray | None = ...,
    label: NDArray | None = ...,
    margin: float | None = ...,
    regularization_coefficient: float | None = ...,
    use_linear: bool | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def SequenceLast(
    data: NDArray | None = ...,
    sequence_length: NDArray | None = ...,
    use_sequence_length: bool | None = ...,
    axis: int | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def SequenceMask(
    data: NDArray | None = ...,
    sequence_length: NDArray | None = ...,
    use_sequence_length: bool | None = ...,
    value: float | None = ...,
    axis: int | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def SequenceReverse(
    data: NDArray | None = ...,
    sequence_length: NDArray | None = ...,
    use_sequence_length: bool | None = ...,
    axis: int | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def SliceChannel(
    data: NDArray | None = ...,
    num_outputs: int | None = ...,
    axis: int | None = ...,
    squeeze_axis: bool | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> Any: ...
def Softmax(
    data: NDArray | None = ...,
    label: NDArray | None = ...,
    grad_scale: float | None = ...,
    ignore_label: float | None = ...,
    multi_output: bool | None = ...,
    use_ignore: bool | None = ...,
    preserve_shape: bool | None = ...,
    normalization: str | None = ...,
    out_grad: bool | None = ...,
    smooth_alpha: float | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def SoftmaxActivation(
    data: NDArray | None = ...,
    mode: str | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def SoftmaxOutput(
    data: NDArray | None = ...,
    label: NDArray | None = ...,
    grad_scale: float | None = ...,
    ignore_label: float | None = ...,
    multi_output: bool | None = ...,
    use_ignore: bool | None = ...,
    preserve_shape: bool | None = ...,
    normalization: str | None = ...,
    out_grad: bool | None = ...,
    smooth_alpha: float | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def SwapAxis(
    data: NDArray | None = ...,
    dim1: int | None = ...,
    dim2: int | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def UpSampling(
    *data: NDArray | Sequence[NDArray],
    scale: int | None = ...,
    num_filter: int | None = ...,
    sample_type: str | None = ...,
    multi_input_mode: str | None = ...,
    workspace: int | None = ...,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def abs(
    data: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def adam_update(
    weight: NDArray | None = ...,
    grad: NDArray | None = ...,
    mean: NDArray | None = ...,
    var: NDArray | None = ...,
    lr: float | None = ...,
    beta1: float | None = ...,
    beta2: float | None = ...,
    epsilon: float | None = ...,
    wd: float | None = ...,
    rescale_grad: float | None = ...,
    clip_gradient: float | None = ...,
    lazy_update: bool | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def add_n(
    *data: NDArray | Sequence[NDArray],
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def all_finite(
    data: NDArray | None = ...,
    init_output: bool | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def amp_cast(
    data: NDArray | None = ...,
    dtype: Any = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def arccos(
    data: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def arccosh(
    data: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def arcsin(
    data: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def arcsinh(
    data: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def arctan(
    data: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def arctanh(
    data: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def argmax(
    data: NDArray | None = ...,
    axis: int | None = ...,
    keepdims: bool | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def argmax_channel(
    data: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def argmin(
    data: NDArray | None = ...,
    axis: int | None = ...,
    keepdims: bool | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def argsort(
    data: NDArray | None = ...,
    axis: int | None = ...,
    is_ascend: bool | None = ...,
    dtype: Any = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def batch_dot(
    lhs: NDArray | None = ...,
    rhs: NDArray | None = ...,
    transpose_a: bool | None = ...,
    transpose_b: bool | None = ...,
    forward_stype: str | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def batch_take(
    a: NDArray | None = ...,
    indices: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def broadcast_add(
    lhs: NDArray | None = ...,
    rhs: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def broadcast_axes(
    data: NDArray | None = ...,
    axis: int | Sequence[int] | None = ...,
    size: int | Sequence[int] | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def broadcast_axis(
    data: NDArray | None = ...,
    axis: int | Sequence[int] | None = ...,
    size: int | Sequence[int] | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def broadcast_div(
    lhs: NDArray | None = ...,
    rhs: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def broadcast_equal(
    lhs: NDArray | None = ...,
    rhs: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def broadcast_greater(
    lhs: NDArray | None = ...,
    rhs: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def broadcast_greater_equal(
    lhs: NDArray | None = ...,
    rhs: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def broadcast_hypot(
    lhs: NDArray | None = ...,
    rhs: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def broadcast_lesser(
    lhs: NDArray | None = ...,
    rhs: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def broadcast_lesser_equal(
    lhs: NDArray | None = ...,
    rhs: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def broadcast_like(
    lhs: NDArray | None = ...,
    rhs: NDArray | None = ...,
    lhs_axes: int | Sequence[int] | None = ...,
    rhs_axes: int | Sequence[int] | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def broadcast_logical_and(
    lhs: NDArray | None = ...,
    rhs: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def broadcast_logical_or(
    lhs: NDArray | None = ...,
    rhs: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def broadcast_logical_xor(
    lhs: NDArray | None = ...,
    rhs: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def broadcast_maximum(
    lhs: NDArray | None = ...,
    rhs: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def broadcast_minimum(
    lhs: NDArray | None = ...,
    rhs: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def broadcast_minus(
    lhs: NDArray | None = ...,
    rhs: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def broadcast_mod(
    lhs: NDArray | None = ...,
    rhs: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def broadcast_mul(
    lhs: NDArray | None = ...,
    rhs: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def broadcast_not_equal(
    lhs: NDArray | None = ...,
    rhs: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def broadcast_plus(
    lhs: NDArray | None = ...,
    rhs: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def broadcast_power(
    lhs: NDArray | None = ...,
    rhs: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def broadcast_sub(
    lhs: NDArray | None = ...,
    rhs: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def broadcast_to(
    data: NDArray | None = ...,
    shape: int | Sequence[int] | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def cast(
    data: NDArray | None = ...,
    dtype: Any = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def cbrt(
    data: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def ceil(
    data: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def choose_element_0index(
    data: NDArray | None = ...,
    index: NDArray | None = ...,
    axis: int | None = ...,
    keepdims: bool | None = ...,
    mode: str | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def clip(
    data: NDArray | None = ...,
    a_min: float | None = ...,
    a_max: float | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def concat(
    *data: NDArray | Sequence[NDArray],
    dim: int | None = ...,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def cos(
    data: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def cosh(
    data: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def crop(
    data: NDArray | None = ...,
    begin: int | Sequence[int] | None = ...,
    end: int | Sequence[int] | None = ...,
    step: int | Sequence[int] | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def cumsum(
    a: NDArray | None = ...,
    axis: int | None = ...,
    dtype: Any = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def degrees(
    data: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def depth_to_space(
    data: NDArray | None = ...,
    block_size: int | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def diag(
    data: NDArray | None = ...,
    k: int | None = ...,
    axis1: int | None = ...,
    axis2: int | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def dot(
    lhs: NDArray | None = ...,
    rhs: NDArray | None = ...,
    transpose_a: bool | None = ...,
    transpose_b: bool | None = ...,
    forward_stype: str | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def elemwise_add(
    lhs: NDArray | None = ...,
    rhs: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def elemwise_div(
    lhs: NDArray | None = ...,
    rhs: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def elemwise_mul(
    lhs: NDArray | None = ...,
    rhs: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def elemwise_sub(
    lhs: NDArray | None = ...,
    rhs: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def erf(
    data: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def erfinv(
    data: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def exp(
    data: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def expand_dims(
    data: NDArray | None = ...,
    axis: int | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def expm1(
    data: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def fix(
    data: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def flatten(
    data: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def flip(
    data: NDArray | None = ...,
    axis: int | Sequence[int] | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def floor(
    data: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def ftml_update(
    weight: NDArray | None = ...,
    grad: NDArray | None = ...,
    d: NDArray | None = ...,
    v: NDArray | None = ...,
    z: NDArray | None = ...,
    lr: float | None = ...,
    beta1: float | None = ...,
    beta2: float | None = ...,
    epsilon: float | None = ...,
    t: int | None = ...,
    wd: float | None = ...,
    rescale_grad: float | None = ...,
    clip_grad: float | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def ftrl_update(
    weight: NDArray | None = ...,
    grad: NDArray | None = ...,
    z: NDArray | None = ...,
    n: NDArray | None = ...,
    lr: float | None = ...,
    lamda1: float | None = ...,
    beta: float | None = ...,
    wd: float | None = ...,
    rescale_grad: float | None = ...,
    clip_gradient: float | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def gamma(
    data: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def gammaln(
    data: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def gather_nd(
    data: NDArray | None = ...,
    indices: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def hard_sigmoid(
    data: NDArray | None = ...,
    alpha: float | None = ...,
    beta: float | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def identity(
    data: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def lamb_update_phase1(
    weight: NDArray | None = ...,
    grad: NDArray | None = ...,
    mean: NDArray | None = ...,
    var: NDArray | None = ...,
    beta1: float | None = ...,
    beta2: float | None = ...,
    epsilon: float | None = ...,
    t: int | None = ...,
    bias_correction: bool | None = ...,
    wd: float | None = ...,
    rescale_grad: float | None = ...,
    clip_gradient: float | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def lamb_update_phase2(
    weight: NDArray | None = ...,
    g: NDArray | None = ...,
    r1: NDArray | None = ...,
    r2: NDArray | None = ...,
    lr: float | None = ...,
    lower_bound: float | None = ...,
    upper_bound: float | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def log(
    data: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def log10(
    data: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def log1p(
    data: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def log2(
    data: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def log_softmax(
    data: NDArray | None = ...,
    axis: int | None = ...,
    temperature: float | None = ...,
    dtype: Any = ...,
    use_length: bool | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def logical_not(
    data: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def make_loss(
    data: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def max(
    data: NDArray | None = ...,
    axis: int | Sequence[int] | None = ...,
    keepdims: bool | None = ...,
    exclude: bool | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def max_axis(
    data: NDArray | None = ...,
    axis: int | Sequence[int] | None = ...,
    keepdims: bool | None = ...,
    exclude: bool | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def mean(
    data: NDArray | None = ...,
    axis: int | Sequence[int] | None = ...,
    keepdims: bool | None = ...,
    exclude: bool | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def min(
    data: NDArray | None = ...,
    axis: int | Sequence[int] | None = ...,
    keepdims: bool | None = ...,
    exclude: bool | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def min_axis(
    data: NDArray | None = ...,
    axis: int | Sequence[int] | None = ...,
    keepdims: bool | None = ...,
    exclude: bool | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def moments(
    data: NDArray | None = ...,
    axes: int | Sequence[int] | None = ...,
    keepdims: bool | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> Any: ...
def mp_nag_mom_update(
    weight: NDArray | None = ...,
    grad: NDArray | None = ...,
    mom: NDArray | None = ...,
    weight32: NDArray | None = ...,
    lr: float | None = ...,
    momentum: float | None = ...,
    wd: float | None = ...,
    rescale_grad: float | None = ...,
    clip_gradient: float | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def mp_sgd_mom_update(
    weight: NDArray | None = ...,
    grad: NDArray | None = ...,
    mom: NDArray | None = ...,
    weight32: NDArray | None = ...,
    lr: float | None = ...,
    momentum: float | None = ...,
    wd: float | None = ...,
    rescale_grad: float | None = ...,
    clip_gradient: float | None = ...,
    lazy_update: bool | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def mp_sgd_update(
    weight: NDArray | None = ...,
    grad: NDArray | None = ...,
    weight32: NDArray | None = ...,
    lr: float | None = ...,
    wd: float | None = ...,
    rescale_grad: float | None = ...,
    clip_gradient: float | None = ...,
    lazy_update: bool | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def nag_mom_update(
    weight: NDArray | None = ...,
    grad: NDArray | None = ...,
    mom: NDArray | None = ...,
    lr: float | None = ...,
    momentum: float | None = ...,
    wd: float | None = ...,
    rescale_grad: float | None = ...,
    clip_gradient: float | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def nanprod(
    data: NDArray | None = ...,
    axis: int | Sequence[int] | None = ...,
    keepdims: bool | None = ...,
    exclude: bool | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def nansum(
    data: NDArray | None = ...,
    axis: int | Sequence[int] | None = ...,
    keepdims: bool | None = ...,
    exclude: bool | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def negative(
    data: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def norm(
    data: NDArray | None = ...,
    ord: int | None = ...,
    axis: int | Sequence[int] | None = ...,
    out_dtype: Any = ...,
    keepdims: bool | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def normal(
    loc: float | None = ...,
    scale: float | None = ...,
    shape: int | Sequence[int] | None = ...,
    dtype: Any = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def one_hot(
    indices: NDArray | None = ...,
    depth: int | None = ...,
    on_value: float | None = ...,
    off_value: float | None = ...,
    dtype: Any = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def ones_like(
    data: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def pad(
    data: NDArray | None = ...,
    mode: str | None = ...,
    pad_width: int | Sequence[int] | None = ...,
    constant_value: float | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def pick(
    data: NDArray | None = ...,
    index: NDArray | None = ...,
    axis: int | None = ...,
    keepdims: bool | None = ...,
    mode: str | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def prod(
    data: NDArray | None = ...,
    axis: int | Sequence[int] | None = ...,
    keepdims: bool | None = ...,
    exclude: bool | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def radians(
    data: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def random_exponential(
    lam: float | None = ...,
    shape: int | Sequence[int] | None = ...,
    dtype: Any = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def random_normal(
    loc: float | None = ...,
    scale: float | None = ...,
    shape: int | Sequence[int] | None = ...,
    dtype: Any = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def random_randint(
    low: int | None = ...,
    high: int | None = ...,
    shape: int | Sequence[int] | None = ...,
    dtype: Any = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def random_uniform(
    low: float | None = ...,
    high: float | None = ...,
    shape: int | Sequence[int] | None = ...,
    dtype: Any = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def ravel_multi_index(
    data: NDArray | None = ...,
    shape: int | Sequence[int] | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def rcbrt(
    data: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def reciprocal(
    data: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def relu(
    data: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def repeat(
    data: NDArray | None = ...,
    repeats: int | None = ...,
    axis: int | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def reshape(
    data: NDArray | None = ...,
    shape: int | Sequence[int] | None = ...,
    reverse: bool | None = ...,
    target_shape: int | Sequence[int] | None = ...,
    keep_highest: bool | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def reshape_like(
    lhs: NDArray | None = ...,
    rhs: NDArray | None = ...,
    lhs_begin: int | None = ...,
    lhs_end: int | None = ...,
    rhs_begin: int | None = ...,
    rhs_end: int | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def reverse(
    data: NDArray | None = ...,
    axis: int | Sequence[int] | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def rint(
    data: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def rmsprop_update(
    weight: NDArray | None = ...,
    grad: NDArray | None = ...,
    n: NDArray | None = ...,
    lr: float | None = ...,
    gamma1: float | None = ...,
    epsilon: float | None = ...,
    wd: float | None = ...,
    rescale_grad: float | None = ...,
    clip_gradient: float | None = ...,
    clip_weights: float | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def rmspropalex_update(
    weight: NDArray | None = ...,
    grad: NDArray | None = ...,
    n: NDArray | None = ...,
    g: NDArray | None = ...,
    delta: NDArray | None = ...,
    lr: float | None = ...,
    gamma1: float | None = ...,
    gamma2: float | None = ...,
    epsilon: float | None = ...,
    wd: float | None = ...,
    rescale_grad: float | None = ...,
    clip_gradient: float | None = ...,
    clip_weights: float | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def round(
    data: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def rsqrt(
    data: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def sample_exponential(
    lam: NDArray | None = ...,
    shape: int | Sequence[int] | None = ...,
    dtype: Any = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def sample_multinomial(
    data: NDArray | None = ...,
    shape: int | Sequence[int] | None = ...,
    get_prob: bool | None = ...,
    dtype: Any = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> Any: ...
def sample_normal(
    mu: NDArray | None = ...,
    sigma: NDArray | None = ...,
    shape: int | Sequence[int] | None = ...,
    dtype: Any = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def sample_uniform(
    low: NDArray | None = ...,
    high: NDArray | None = ...,
    shape: int | Sequence[int] | None = ...,
    dtype: Any = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def scatter_nd(
    data: NDArray | None = ...,
    indices: NDArray | None = ...,
    shape: int | Sequence[int] | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def sgd_mom_update(
    weight: NDArray | None = ...,
    grad: NDArray | None = ...,
    mom: NDArray | None = ...,
    lr: float | None = ...,
    momentum: float | None = ...,
    wd: float | None = ...,
    rescale_grad: float | None = ...,
    clip_gradient: float | None = ...,
    lazy_update: bool | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def sgd_update(
    weight: NDArray | None = ...,
    grad: NDArray | None = ...,
    lr: float | None = ...,
    wd: float | None = ...,
    rescale_grad: float | None = ...,
    clip_gradient: float | None = ...,
    lazy_update: bool | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def shape_array(
    data: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def shuffle(
    data: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def sigmoid(
    data: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def sign(
    data: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def signsgd_update(
    weight: NDArray | None = ...,
    grad: NDArray | None = ...,
    lr: float | None = ...,
    wd: float | None = ...,
    rescale_grad: float | None = ...,
    clip_gradient: float | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def signum_update(
    weight: NDArray | None = ...,
    grad: NDArray | None = ...,
    mom: NDArray | None = ...,
    lr: float | None = ...,
    momentum: float | None = ...,
    wd: float | None = ...,
    rescale_grad: float | None = ...,
    clip_gradient: float | None = ...,
    wd_lh: float | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def sin(
    data: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def sinh(
    data: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def size_array(
    data: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def slice(
    data: NDArray | None = ...,
    begin: int | Sequence[int] | None = ...,
    end: int | Sequence[int] | None = ...,
    step: int | Sequence[int] | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def slice_axis(
    data: NDArray | None = ...,
    axis: int | None = ...,
    begin: int | None = ...,
    end: int | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def slice_like(
    data: NDArray | None = ...,
    shape_like: NDArray | None = ...,
    axes: int | Sequence[int] | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def smooth_l1(
    data: NDArray | None = ...,
    scalar: float | None = ...,
    is_int: bool | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def softmax(
    data: NDArray | None = ...,
    length: NDArray | None = ...,
    axis: int | None = ...,
    temperature: float | None = ...,
    dtype: Any = ...,
    use_length: bool | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def softmax_cross_entropy(
    data: NDArray | None = ...,
    label: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def softmin(
    data: NDArray | None = ...,
    axis: int | None = ...,
    temperature: float | None = ...,
    dtype: Any = ...,
    use_length: bool | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def softsign(
    data: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def sort(
    data: NDArray | None = ...,
    axis: int | None = ...,
    is_ascend: bool | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def space_to_depth(
    data: NDArray | None = ...,
    block_size: int | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def split(
    data: NDArray | None = ...,
    num_outputs: int | None = ...,
    axis: int | None = ...,
    squeeze_axis: bool | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> Any: ...
def sqrt(
    data: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def square(
    data: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def squeeze(
    data: NDArray | None = ...,
    axis: int | Sequence[int] | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def stack(
    *data: NDArray | Sequence[NDArray],
    axis: int | None = ...,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def stop_gradient(
    data: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def sum(
    data: NDArray | None = ...,
    axis: int | Sequence[int] | None = ...,
    keepdims: bool | None = ...,
    exclude: bool | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def sum_axis(
    data: NDArray | None = ...,
    axis: int | Sequence[int] | None = ...,
    keepdims: bool | None = ...,
    exclude: bool | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def swapaxes(
    data: NDArray | None = ...,
    dim1: int | None = ...,
    dim2: int | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def take(
    a: NDArray | None = ...,
    indices: NDArray | None = ...,
    axis: int | None = ...,
    mode: str | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def tan(
    data: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def tanh(
    data: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def tile(
    data: NDArray | None = ...,
    reps: int | Sequence[int] | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def topk(
    data: NDArray | None = ...,
    axis: int | None = ...,
    k: int | None = ...,
    ret_typ: str | None = ...,
    is_ascend: bool | None = ...,
    dtype: Any = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> Any: ...
def transpose(
    data: NDArray | None = ...,
    axes: int | Sequence[int] | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def trunc(
    data: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def uniform(
    low: float | None = ...,
    high: float | None = ...,
    shape: int | Sequence[int] | None = ...,
    dtype: Any = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def unravel_index(
    data: NDArray | None = ...,
    shape: int | Sequence[int] | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def where(
    condition: NDArray | None = ...,
    x: NDArray | None = ...,
    y: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
def zeros_like(
    data: NDArray | None = ...,
    *,
    out: Any = ...,
    name: str | None = ...,
    **kwargs: Any,
) -> NDArray: ...
