// Small matrix products, cut into products that the threads of a team take one by one. Beside a
// parallel region for each product this saves what its start and end cost, and a thread that is
// late or loses its core delays the product by a piece at most.
//
// What a core has written is near to that core only: a line of another core's cache costs 50 ns to
// 150 ns, one after the other where it is written. So equal parts of a matrix go to the same thread
// wherever they can. A product with a matrix stored as (n, k), the weights of a layer, is cut into
// columns, which are rows of the weights; one with a matrix stored as (k, m), the gradient of the
// weights, into rows, which are the same ones and stay where they are made. Other results go on to
// steps of one thread, so that thread collects them: reading from another core is quick.
#include <algorithm>
#include <cstring>

#include "onednn/matmul.h"
#include "onednn/sequence.h"

namespace mixflow::onednn {
namespace {

constexpr double kMostFlops = 6.4e7;  // above, a parallel region costs nothing by comparison
constexpr double kManyFlops = 4e6;    // below, one piece per thread: more cost more than they save
constexpr int kPiecesPerThread = 2;
constexpr int64_t kUnit = 16;         // sizes of pieces are multiples where the size allows

class PiecesKernel final : public Kernel {
 public:
  PiecesKernel(const Product& p, int thread_count) : p_(p) {
    const int64_t most = p.flops() < kManyFlops ? thread_count : kPiecesPerThread * thread_count;
    by_columns_ = p.transpose_b && !p.transpose_a;
    const int64_t size = by_columns_ ? p.n : p.m;
    const int64_t unit = size >= kUnit * most && size % kUnit == 0 ? kUnit : 1;
    const int64_t units = size / unit, count = std::min(most, units);
    for (int64_t i = 0; i < count; ++i) {
      add(units * i / count * unit, units * (i + 1) / count * unit);
    }
    threads = thread_count;
    teamwork = true;
    workspace_bytes = slice_ * pieces_.size();
  }

  // Whether oneDNN has fast code for every piece.
  bool good() const { return good_; }

  void run(const kernels::Buffers& buffers, const kernels::RunContext& context) const override {
    const auto body = [&](int i) { run_piece(buffers, i); };
    run_pieces(context.team, static_cast<int>(pieces_.size()), body);
    if (!p_.transpose_a) collect(buffers);
  }

 private:
  struct Piece {
    std::unique_ptr<SequenceKernel> kernel;
    int64_t begin, size;  // of rows or columns
  };

  void add(int64_t begin, int64_t end);
  void run_piece(const kernels::Buffers& buffers, int number) const;
  void collect(const kernels::Buffers& buffers) const;
  size_t bytes_of(const Piece& piece) const;

  Product p_;
  bool by_columns_;
  bool good_ = true;
  std::vector<Piece> pieces_;
  size_t slice_ = 0;  // workspace of a piece: which thread takes it is not known
};

memory::desc matrix(int64_t rows, int64_t cols, const Dims& strides) {
  return memory::desc({rows, cols}, memory::data_type::f32, strides);
}

size_t aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }

void PiecesKernel::add(int64_t begin, int64_t end) {
  const int64_t rows = by_columns_ ? p_.m : end - begin, cols = by_columns_ ? end - begin : p_.n;
  const auto a = matrix(rows, p_.k, p_.transpose_a ? Dims{1, p_.m} : Dims{p_.k, 1});
  const auto b = matrix(p_.k, cols, p_.transpose_b ? Dims{1, p_.k} : Dims{p_.n, 1});
  const auto y = matrix(rows, cols, {cols, 1});
  const dnnl::matmul::primitive_desc desc(cpu_engine(), a, b, y, user_scratchpad());
  good_ = good_ && !is_reference(desc.impl_info_str());
  Piece piece{std::make_unique<SequenceKernel>(), begin, end - begin};
  SequenceKernel& kernel = *piece.kernel;
  const auto slot_a = kernel.input(0, a), slot_b = kernel.input(1, b);
  const auto slot_y = kernel.output(0, y);
  kernel.step(dnnl::matmul(desc), desc.scratchpad_desc(),
              {{DNNL_ARG_SRC, slot_a}, {DNNL_ARG_WEIGHTS, slot_b}, {DNNL_ARG_DST, slot_y}});
  kernel.finish(desc.impl_info_str(), 1, 0);
  implementation = kernel.implementation + "/pieces";
  const size_t result = p_.transpose_a ? 0 : aligned(y.get_size());
  slice_ = std::max(slice_, result + aligned(kernel.workspace_bytes));
  pieces_.push_back(std::move(piece));
}

void PiecesKernel::run_piece(const kernels::Buffers& buffers, int number) const {
  const Piece& piece = pieces_[number];
  const auto* a = static_cast<const float*>(buffers.in[0]);
  const auto* b = static_cast<const float*>(buffers.in[1]);
  char* space = static_cast<char*>(buffers.workspace) + static_cast<size_t>(number) * slice_;
  const int64_t a_step = by_columns_ ? 0 : p_.transpose_a ? 1 : p_.k;
  const void* in[] = {a + piece.begin * a_step, by_columns_ ? b + piece.begin * p_.k : b};
  void* out[] = {space};
  if (p_.transpose_a) {
    out[0] = static_cast<float*>(buffers.out[0]) + piece.begin * p_.n;
  } else {
    space += aligned(bytes_of(piece));
  }
  piece.kernel->run({in, out, space}, {});
}

size_t PiecesKernel::bytes_of(const Piece& piece) const {
  return static_cast<size_t>(piece.size * (by_columns_ ? p_.m : p_.n)) * sizeof(float);
}

// oneDNN's fast kernels write dense results only, so the pieces are dense.
void PiecesKernel::collect(const kernels::Buffers& buffers) const {
  auto* y = static_cast<float*>(buffers.out[0]);
  const auto* space = static_cast<const char*>(buffers.workspace);
  for (size_t i = 0; i < pieces_.size(); ++i) {
    const Piece& piece = pieces_[i];
    const auto* from = reinterpret_cast<const float*>(space + i * slice_);
    if (!by_columns_) {
      std::memcpy(y + piece.begin * p_.n, from, bytes_of(piece));
      continue;
    }
    for (int64_t row = 0; row < p_.m; ++row) {
      std::memcpy(y + row * p_.n + piece.begin, from + row * piece.size,
                  static_cast<size_t>(piece.size) * sizeof(float));
    }
  }
}

bool all_float(const std::vector<Desc>& descs) {
  return std::all_of(descs.begin(), descs.end(),
                     [](const Desc& desc) { return desc.dtype == DType::float32; });
}

}  // namespace

std::unique_ptr<Kernel> matmul_in_pieces(const Request& request, const Product& p, int threads) {
  // Flat matrices, a batch of one for instance, are a question of memory and not of arithmetic.
  const bool flat = std::min({p.m, p.n, p.k}) < kUnit;
  const bool small = p.batch == 1 && p.batch_b == 1 && !flat && p.flops() <= kMostFlops;
  if (threads < 2 || !small || !all_float(request.inputs) || !all_float(request.outputs)) {
    return nullptr;
  }
  const ThreadScope scope(1);
  auto kernel = std::make_unique<PiecesKernel>(p, threads);
  return kernel->good() ? std::move(kernel) : nullptr;
}

}  // namespace mixflow::onednn
