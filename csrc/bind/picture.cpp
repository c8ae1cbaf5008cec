// Pictures of NumPy arrays into samples of batches; the GIL is released while they are computed.
#include "kernels/picture.h"

#include <array>

#include "bind/modules.h"

namespace mixflow::bind {
namespace {

using kernels::PictureTask;

int64_t dimension(nb::handle array, int axis) {
  return nb::cast<int64_t>(nb::object(array.attr("shape"))[axis]);
}

void set_geometry(PictureTask* task, nb::handle geometry) {
  const std::array<int64_t*, 9> fields{&task->region_y, &task->region_x,  &task->whole_h,
                                       &task->whole_w,  &task->resized_h, &task->resized_w,
                                       &task->crop_y,   &task->crop_x,    nullptr};
  check(nb::len(geometry) == fields.size(), "[picture] expected ", fields.size(),
        " numbers of geometry, got ", nb::len(geometry));
  for (size_t i = 0; i + 1 < fields.size(); ++i) *fields[i] = nb::cast<int64_t>(geometry[i]);
  task->mirror = nb::cast<int64_t>(geometry[fields.size() - 1]) != 0;
}

void set_values(const char* what, nb::handle values, int channels, float* to) {
  if (values.is_none()) return;
  check(nb::len(values) == static_cast<size_t>(channels), "[picture] expected one ", what,
        " per channel (", channels, "), got ", nb::len(values));
  for (int k = 0; k < channels; ++k) to[k] = nb::cast<float>(values[k]);
}

void set_order(PictureTask* task, nb::handle order) {
  if (order.is_none()) return;
  check(nb::len(order) == static_cast<size_t>(task->channels), "[picture] expected an order of ",
        task->channels, " channels, got ", nb::len(order));
  for (int k = 0; k < task->channels; ++k) task->order[k] = nb::cast<int>(order[k]);
}

void run(const PictureTask& task, DType dtype, void* out) {
  switch (dtype) {
    case DType::float32:
      return kernels::picture(task, static_cast<float*>(out));
    case DType::uint8:
      return kernels::picture(task, static_cast<uint8_t*>(out));
    default:
      return kernels::picture(task, static_cast<int8_t*>(out));
  }
}

void check_ranks(nb::handle source, nb::handle out, DType dtype) {
  check(dtype_of(source) == DType::uint8 && nb::cast<int>(source.attr("ndim")) == 3,
        "[picture] expected a source (height, width, channels) of uint8");
  const bool known = dtype == DType::float32 || dtype == DType::uint8 || dtype == DType::int8;
  check(known && nb::cast<int>(out.attr("ndim")) == 3,
        "[picture] expected an output (channels, height, width) of float32, uint8 or int8");
}

void picture(nb::handle source, nb::handle out, nb::handle geometry, nb::handle order,
             nb::handle mean, nb::handle factor, nb::handle bias, nb::handle mean_image) {
  const DType dtype = dtype_of(out);
  check_ranks(source, out, dtype);
  const NumpyBytes from(source, false);
  const NumpyBytes to(out, true);
  PictureTask task;
  task.source = static_cast<const uint8_t*>(from.data());
  task.region_h = dimension(source, 0);
  task.region_w = dimension(source, 1);
  const int64_t channels = dimension(source, 2);
  check(channels >= 1 && channels <= kernels::kMaxChannels && dimension(out, 0) == channels,
        "[picture] expected 1 to 4 channels in source and output, got ", channels, " and ",
        dimension(out, 0));
  task.channels = static_cast<int>(channels);
  task.row_bytes = task.region_w * channels;
  task.height = dimension(out, 1);
  task.width = dimension(out, 2);
  set_geometry(&task, geometry);
  set_order(&task, order);
  set_values("mean", mean, task.channels, task.mean);
  set_values("factor", factor, task.channels, task.factor);
  set_values("bias", bias, task.channels, task.bias);
  kernels::check_picture(task);
  std::unique_ptr<NumpyBytes> image;
  if (!mean_image.is_none()) {
    check(dtype_of(mean_image) == DType::float32, "[picture] expected a mean image of float32");
    image = std::make_unique<NumpyBytes>(mean_image, false);
    check(image->size() == static_cast<size_t>(channels * task.height * task.width) * sizeof(float),
          "[picture] expected a mean image of the output's size, got ", image->size(), " bytes");
    task.mean_image = static_cast<const float*>(image->data());
  }
  const nb::gil_scoped_release unlocked;
  run(task, dtype, to.data());
}

}  // namespace

void bind_picture(nb::module_& m) {
  m.def("picture", picture, nb::arg("source"), nb::arg("out"), nb::arg("geometry"),
        nb::arg("order") = nb::none(), nb::arg("mean") = nb::none(), nb::arg("factor") = nb::none(),
        nb::arg("bias") = nb::none(), nb::arg("mean_image") = nb::none());
}

}  // namespace mixflow::bind
