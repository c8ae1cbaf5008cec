// The programs of whole.h. Compiled without contraction to multiply-add instructions, so that the
// results are those of single instructions.
//
// Hazard: an output may be the memory of any input, so each loop reads its elements before it writes.
#include "kernels/whole.h"

namespace mixflow::kernels::MIXFLOW_ISA {
namespace {

// Gradient, rescale, rate, weight, rate times decay, momentum state.
void sgd_momentum(const float* const* in, float* const* out, const float* literals, int64_t n) {
  const float *grad = in[0], *weight = in[3], *state = in[5];
  const float rescale = *in[1], rate = *in[2], decay = *in[4], momentum = literals[0];
  float *new_state = out[0], *new_weight = out[1];
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    const float old = weight[i];
    const float moved = (state[i] * momentum - old * decay) - grad[i] * rescale * rate;
    new_state[i] = moved;
    new_weight[i] = old + moved;
  }
}

void sgd(const float* const* in, float* const* out, const float*, int64_t n) {
  const float *grad = in[0], *weight = in[3];
  const float rescale = *in[1], rate = *in[2], keep = *in[4];
  float* new_weight = out[0];
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) new_weight[i] = weight[i] * keep - grad[i] * rescale * rate;
}

// Weight, decay, gradient, rescale, second moment, first moment, rate.
void adam(const float* const* in, float* const* out, const float* literals, int64_t n) {
  const float *weight = in[0], *grad = in[2], *second = in[4], *first = in[5];
  const float decay = *in[1], rescale = *in[3], rate = *in[6];
  const float fresh2 = literals[0], keep2 = literals[1], epsilon = literals[2];
  const float fresh1 = literals[3], keep1 = literals[4];
  float *new_second = out[0], *new_first = out[1], *new_weight = out[2];
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    const float old = weight[i];
    const float g = grad[i] * rescale + old * decay;
    const float v = second[i] * keep2 + g * g * fresh2;
    const float m = first[i] * keep1 + g * fresh1;
    new_second[i] = v;
    new_first[i] = m;
    new_weight[i] = old - m * rate / (__builtin_sqrtf(v) + epsilon);
  }
}

void add_relu(const float* const* in, float* const* out, const float*, int64_t n) {
  const float *a = in[0], *b = in[1];
  float* result = out[0];
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    const float sum = a[i] + b[i];
    result[i] = sum < 0.0f ? 0.0f : sum;  // a NaN stays
  }
}

// Output of relu, gradient; above, else.
void relu_gradient(const float* const* in, float* const* out, const float* literals, int64_t n) {
  const float *y = in[0], *grad = in[1];
  const float bound = literals[0], other = literals[1];
  float* result = out[0];
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    const float g = grad[i];
    result[i] = y[i] > bound ? g : other;
  }
}

// Output of tanh, gradient.
void tanh_gradient(const float* const* in, float* const* out, const float* literals, int64_t n) {
  const float *y = in[0], *grad = in[1];
  const float one = literals[0];
  float* result = out[0];
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) result[i] = grad[i] * (one - y[i] * y[i]);
}

const WholeProgram programs[] = {
    {"multiply i0 i1;multiply t0 i2;multiply i3 i4;multiply i5 #;subtract t3 t2;subtract t4 t1;"
     "add i3 t5;out t5 t6",
     "fssfsf", sgd_momentum},
    {"multiply i0 i1;multiply t0 i2;multiply i3 i4;subtract t2 t1;out t3", "fssfs", sgd},
    {"multiply i0 i1;multiply i2 i3;add t1 t0;multiply t2 t2;multiply t3 #;multiply i4 #;"
     "add t5 t4;sqrt t6;add t7 #;multiply t2 #;multiply i5 #;add t10 t9;multiply t11 i6;"
     "divide t12 t8;subtract i0 t13;out t6 t11 t14",
     "fsfsffs", adam},
    {"add i0 i1;relu t0;out t1", "ff", add_relu},
    {"greater i0 #;select t0 i1 #;out t1", "ff", relu_gradient},
    {"multiply i0 i0;subtract # t0;multiply i1 t1;out t2", "ff", tanh_gradient},
};

}  // namespace

extern const WholeTable whole_table;
const WholeTable whole_table = {programs, static_cast<int>(sizeof programs / sizeof *programs)};

}  // namespace mixflow::kernels::MIXFLOW_ISA
