// Small matrix products, cut into products of some rows each that the threads of a team take one by
// one. Beside a parallel region for each product this saves what its start and end cost, and a
// thread that is late or loses its core delays the product by a piece at most.
#include <algorithm>

#include "onednn/matmul.h"
#include "onednn/sequence.h"

namespace mixflow::onednn {
namespace {

constexpr double kMostFlops = 6.4e7;   // above, a parallel region costs nothing by comparison
constexpr double kManyFlops = 4e6;     // below, one piece per thread: more cost more than they save
constexpr int kPiecesPerThread = 2;
constexpr int64_t kRowUnit = 16;       // of pieces that are columns in memory

// One of the primitives of a product: which part of the operands it gets.
struct Piece {
  std::unique_ptr<SequenceKernel> kernel;
  int64_t in0 = 0, in1 = 0, out = 0;  // first elements
};

class PiecesKernel final : public Kernel {
 public:
  PiecesKernel(const Product& p, int thread_count);

  void run(const kernels::Buffers& buffers, const kernels::RunContext& context) const override;

 private:
  void multiply(const memory::desc& b);
  void pack(const memory::desc& packed);
  memory::desc rows_of_a(int64_t rows) const;
  memory::desc plain_b() const;
  void place();

  Product p_;
  int pieces_;
  std::vector<Piece> packing_;   // weights into the order in which the products read them
  std::vector<Piece> products_;
  size_t packed_bytes_ = 0;
  size_t slice_ = 0;  // workspace of a piece
};

memory::desc matrix(int64_t rows, int64_t cols, const Dims& strides) {
  return memory::desc({rows, cols}, memory::data_type::f32, strides);
}

memory::desc PiecesKernel::rows_of_a(int64_t rows) const {
  return matrix(rows, p_.k, p_.transpose_a ? Dims{1, p_.m} : Dims{p_.k, 1});
}

memory::desc PiecesKernel::plain_b() const {
  return matrix(p_.k, p_.n, p_.transpose_b ? Dims{1, p_.k} : Dims{p_.n, 1});
}

PiecesKernel::PiecesKernel(const Product& p, int thread_count) : p_(p) {
  const bool many = p.flops() >= kManyFlops;
  pieces_ = many ? kPiecesPerThread * thread_count : thread_count;
  memory::desc b = plain_b();
  if (many && p.transpose_b) {
    // Every piece would bring the whole of b into its order for itself: done once instead.
    const memory::desc any = any_desc({p.k, p.n}, memory::data_type::f32);
    const int64_t rows = (p.m + pieces_ - 1) / pieces_;
    const dnnl::matmul::primitive_desc desc(cpu_engine(), rows_of_a(rows), any,
                                            matrix(rows, p.n, {p.n, 1}), user_scratchpad());
    const memory::desc wanted = desc.weights_desc();
    const size_t dense = static_cast<size_t>(p.k * p.n) * sizeof(float);
    if (wanted != b && wanted.get_size() == dense && p.k % kRowUnit == 0) {
      pack(wanted);
      b = wanted;
    }
  }
  multiply(b);
  place();
  threads = thread_count;
  teamwork = true;
}

void PiecesKernel::pack(const memory::desc& packed) {
  const int64_t units = p_.k / kRowUnit;
  for (int i = 0; i < pieces_; ++i) {
    const int64_t begin = units * i / pieces_ * kRowUnit, end = units * (i + 1) / pieces_ * kRowUnit;
    if (begin == end) continue;
    Piece piece;
    piece.kernel = std::make_unique<SequenceKernel>();
    piece.in0 = begin * (p_.transpose_b ? 1 : p_.n);
    const auto from = matrix(end - begin, p_.n, p_.transpose_b ? Dims{1, p_.k} : Dims{p_.n, 1});
    const auto to = packed.submemory_desc({end - begin, p_.n}, {begin, 0});
    const auto source = piece.kernel->input(0, from);
    piece.kernel->store(source, piece.kernel->output(0, to));
    piece.kernel->finish("pack", 1, 0);
    packing_.push_back(std::move(piece));
  }
  packed_bytes_ = packed.get_size();
}

void PiecesKernel::multiply(const memory::desc& b) {
  for (int i = 0; i < pieces_; ++i) {
    const int64_t begin = p_.m * i / pieces_, end = p_.m * (i + 1) / pieces_;
    if (begin == end) continue;
    const auto a = rows_of_a(end - begin), y = matrix(end - begin, p_.n, {p_.n, 1});
    const dnnl::matmul::primitive_desc desc(cpu_engine(), a, b, y, user_scratchpad());
    Piece piece;
    piece.kernel = std::make_unique<SequenceKernel>();
    SequenceKernel& kernel = *piece.kernel;
    const auto slot_a = kernel.input(0, a), slot_b = kernel.input(1, b);
    const auto slot_y = kernel.output(0, y);
    kernel.step(dnnl::matmul(desc), desc.scratchpad_desc(),
                {{DNNL_ARG_SRC, slot_a}, {DNNL_ARG_WEIGHTS, slot_b}, {DNNL_ARG_DST, slot_y}});
    kernel.finish(desc.impl_info_str(), 1, 0);
    piece.in0 = begin * (p_.transpose_a ? 1 : p_.k);
    piece.out = begin * p_.n;
    implementation = kernel.implementation;
    products_.push_back(std::move(piece));
  }
}

// A slice of the workspace for each piece: which thread takes it is not known.
void PiecesKernel::place() {
  for (const auto* list : {&packing_, &products_}) {
    for (const Piece& piece : *list) slice_ = std::max(slice_, piece.kernel->workspace_bytes);
  }
  slice_ = (slice_ + 63) / 64 * 64;
  packed_bytes_ = (packed_bytes_ + 63) / 64 * 64;
  workspace_bytes = packed_bytes_ + slice_ * std::max(packing_.size(), products_.size());
}

void PiecesKernel::run(const kernels::Buffers& buffers, const kernels::RunContext& context) const {
  auto* packed = static_cast<char*>(buffers.workspace);
  const auto run_piece = [&](const Piece& piece, int number, const void* first, const void* second,
                             void* target) {
    const void* in[] = {static_cast<const float*>(first) + piece.in0, second};
    void* out[] = {static_cast<float*>(target) + piece.out};
    kernels::Buffers part{in, out, packed + packed_bytes_ + static_cast<size_t>(number) * slice_};
    piece.kernel->run(part, {});
  };
  if (!packing_.empty()) {
    run_pieces(context.team, static_cast<int>(packing_.size()), [&](int i) {
      run_piece(packing_[i], i, buffers.in[1], nullptr, packed);
    });
  }
  const void* b = packing_.empty() ? buffers.in[1] : packed;
  run_pieces(context.team, static_cast<int>(products_.size()), [&](int i) {
    run_piece(products_[i], i, buffers.in[0], b, buffers.out[0]);
  });
}

}  // namespace

std::unique_ptr<Kernel> matmul_in_pieces(const Request& request, const Product& p, int threads) {
  const auto is_float = [](const Desc& desc) { return desc.dtype == DType::float32; };
  const bool serves = std::all_of(request.inputs.begin(), request.inputs.end(), is_float) &&
                      std::all_of(request.outputs.begin(), request.outputs.end(), is_float);
  if (threads < 2 || !serves || p.batch != 1 || p.batch_b != 1 || p.flops() > kMostFlops ||
      p.m < kRowUnit * threads) {
    return nullptr;
  }
  const ThreadScope scope(1);
  return std::make_unique<PiecesKernel>(p, threads);
}

}  // namespace mixflow::onednn
