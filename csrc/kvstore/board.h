// A board: the memory that a server and the workers of its host share while every round goes the
// same way ("the lane"). It holds, per slice, the version, where the value lies, and a place for
// each worker's gradient with the number of steps that the worker has put there.
//
// The hazard: any process may die between two stores, and the board goes back to messages at any
// time. So every word has one writer, words only grow, and each says what is complete before it:
//
//   staged    (worker) steps whose gradient lies whole in the worker's place; it is kept there
//             until `durable` has passed it
//   version   (server) rounds that are closed: the value is that of this version, whole
//   durable   (server) rounds that the ledger has: only they are confirmed
//   open      (server) 0 once the board is closed, for good: from then on what is staged and not
//             durable counts for nothing and comes again as a message
//   asked     (worker) how often it wanted the value without a step; `served` (server): which of
//             these it has got
//
// A worker stages step s when `durable` = s, so nobody reads its place any more; it reads the value
// before it stages the next step, and a round needs all workers, so nobody writes under a reader.
//
// Where each push makes an update by itself, every worker has a board of its `own`: its rounds are
// its steps. The value that all of them change lies elsewhere; the board has a copy for its worker,
// made when its step is applied and the worker may read (`version`), or when it asks.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace mixflow::kvstore {

constexpr size_t kLine = 64;
constexpr size_t kPage = 4096;

// What one worker waits on. The server rings after each change; `main` is for a thread of the
// program that waits for its values itself, `pump` for the thread that does so behind it.
struct alignas(kLine) Bell {
  std::atomic<uint32_t> main;
  std::atomic<uint32_t> pump;
  std::atomic<uint32_t> main_waits;  // whether a thread sleeps on `main`
  std::atomic<uint32_t> pending;     // exchanges under way
};

// Shared by all boards of a server: line 0 is the server's, then one bell per worker.
struct alignas(kLine) Desk {
  std::atomic<uint32_t> sleeps;  // whether the server has to be woken
};

struct alignas(kLine) Head {
  std::atomic<uint32_t> open;
};

struct alignas(kLine) Slice {
  std::atomic<int64_t> version;
  std::atomic<int64_t> durable;
  std::atomic<int64_t> served;
};

// A worker's words of a slice.
struct alignas(kLine) Mine {
  std::atomic<int64_t> staged;
  std::atomic<int64_t> asked;
};

static_assert(std::atomic<int64_t>::is_always_lock_free, "words are shared between processes");
static_assert(sizeof(Bell) == kLine && sizeof(Slice) == kLine && sizeof(Head) == kLine, "lines");
static_assert(sizeof(Mine) == kLine, "lines");

// Where things lie on a board, computed alike on both sides from sizes: nothing that another
// process wrote is taken for an address.
class Layout {
 public:
  // bytes: of each slice; columns: workers.
  Layout(std::vector<size_t> bytes, size_t columns);

  size_t slices() const { return bytes_.size(); }
  size_t columns() const { return columns_; }
  size_t bytes(size_t slice) const { return bytes_[slice]; }
  size_t total() const { return total_; }
  size_t slice_at(size_t slice) const { return kLine * (1 + slice); }
  size_t mine_at(size_t slice, size_t column) const;
  size_t value_at(size_t slice) const { return values_[slice]; }
  size_t gradient_at(size_t slice, size_t column) const;

 private:
  std::vector<size_t> bytes_;
  size_t columns_;
  std::vector<size_t> values_;
  size_t total_ = 0;
};

// A layout over memory. A value; who made the memory keeps it.
struct Board {
  Layout layout;
  char* base;
  bool own = false;  // of one worker, for policies whose pushes make updates by themselves

  template <class T>
  T& at(size_t offset) const {
    return *reinterpret_cast<T*>(base + offset);
  }
  std::atomic<uint32_t>& open() const { return at<Head>(0).open; }
  Slice& slice(size_t s) const { return at<Slice>(layout.slice_at(s)); }
  std::atomic<int64_t>& staged(size_t s, size_t column) const {
    return at<Mine>(layout.mine_at(s, column)).staged;
  }
  std::atomic<int64_t>& asked(size_t s, size_t column) const {
    return at<Mine>(layout.mine_at(s, column)).asked;
  }
  char* value(size_t s) const { return base + layout.value_at(s); }
  char* gradient(size_t s, size_t column) const { return base + layout.gradient_at(s, column); }
  // Whether every worker has staged the round that is open.
  bool complete(size_t s) const;
  // Whether the server has something to do.
  bool wants(size_t s) const;
};

// Sleeps while the word (in memory shared with other processes) is `seen`, at most `ms`
// milliseconds; may return early. Needs no lock.
void sleep_on(std::atomic<uint32_t>& word, uint32_t seen, int64_t ms);
// Changes the word; wakes a thread that sleeps on it if `wake`.
void ring(std::atomic<uint32_t>& word, bool wake);

int64_t now_ms();

}  // namespace mixflow::kvstore
