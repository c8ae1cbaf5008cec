// A worker's side of boards: exchanges put gradients on boards and wait for values.
//
// The hazard: a board may be closed at any moment, by the server, by its death, or because somebody
// is late. An exchange that can't end by boards fails *with what it has done*: `staged` says
// whether its gradients count as put there. Whoever takes the failed ones sends by messages what
// the boards have not confirmed (see `retire`), so nothing is lost, and parts keep it exact.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "kvstore/board.h"

namespace mixflow::kvstore {

// What a worker and one server share besides boards.
struct WorkerDesk {
  ~WorkerDesk();
  Bell* bell = nullptr;
  std::atomic<uint32_t>* server_sleeps = nullptr;
  int channel = -1;  // its own descriptor of a socket: a datagram of one byte wakes the server
  std::shared_ptr<void> keep;
  std::thread pump;
  std::atomic<bool> lost{false};   // its pump is to end
  std::atomic<bool> ended{false};  // its pump has ended
};

struct WorkerBoard {
  Board board;
  size_t column;
  std::shared_ptr<WorkerDesk> desk;
  std::shared_ptr<void> keep;
  bool dead = false;  // under the lane's lock; nothing is staged any more
};
using WorkerBoardRef = std::shared_ptr<WorkerBoard>;

// One slice of an exchange: where its gradient is, where its value goes.
struct Piece {
  WorkerBoardRef board;
  size_t slice = 0;
  const char* from = nullptr;
  std::vector<char*> to;
  bool read = false;
};

struct Exchange {
  std::vector<Piece> pieces;
  bool push = true;
  bool pull = true;
  std::vector<engine::TagRef> tags;  // of what it writes: who waits for one may help
  std::function<void(std::exception_ptr)> done;
  std::shared_ptr<void> payload;  // the caller's, for when it fails

  // The lane's, under its lock. `staged`: also where nothing is pushed.
  bool staged = false;
  bool asked = false;  // it only reads, and has asked for the value where a board is its own
  bool busy = false;  // some thread copies for it, without the lock
  bool over = false;  // it has ended or failed, once
  int64_t began_ms = 0;
};
using ExchangeRef = std::shared_ptr<Exchange>;

// Thread-safe. Nothing here takes the GIL; `done` is called without any lock.
class WorkerLane : public std::enable_shared_from_this<WorkerLane> {
 public:
  // notify: a descriptor that gets a byte when an exchange has failed. patience_ms: an exchange that
  // takes longer fails: messages know what to do about missing workers. Close it before it goes.
  static std::shared_ptr<WorkerLane> make(int notify, int64_t patience_ms);
  ~WorkerLane() { close(); }

  std::shared_ptr<WorkerDesk> add_desk(char* desk, size_t number, int channel,
                                       std::shared_ptr<void> keep);
  // The server is gone; its boards are retired. Ends the desk's thread, without waiting for it.
  void drop_desk(const std::shared_ptr<WorkerDesk>& desk);
  WorkerBoardRef open(std::shared_ptr<WorkerDesk> desk, Layout layout, char* memory, size_t column,
                      bool own, std::shared_ptr<void> keep);

  // Starts an exchange, on this thread as far as it goes now.
  void submit(const ExchangeRef& exchange);
  // Waits for the exchange that writes a tag, and ends it on this thread; false where there is
  // none, or `ms` have passed.
  bool help(const engine::Tag* tag, int64_t ms);

  struct Words {
    int64_t staged;
    int64_t durable;
    int64_t version;
  };
  // What a board's words say of this worker now, by slice.
  std::vector<Words> words(const WorkerBoardRef& board) const;
  // Nothing is put on a board any more; what its words say of this worker from then on. Words of
  // exchanges that fail later are final too.
  std::vector<Words> retire(const WorkerBoardRef& board);
  // Whether a board was closed, or is not to be used any more.
  bool over(const WorkerBoardRef& board) const;
  std::vector<ExchangeRef> take_failed();
  // Whether some have failed that nobody has taken.
  bool has_failed() const;

  // Steps of slices that were put on boards.
  int64_t steps() const { return steps_.load(); }
  int64_t bytes() const { return bytes_.load(); }
  // Fails what is under way and joins the threads. Idempotent.
  void close();

 private:
  using Lock = std::unique_lock<std::mutex>;

  WorkerLane(int notify, int64_t patience_ms) : notify_(notify), patience_ms_(patience_ms) {}
  void pump(WorkerDesk& desk);
  void join_ended();
  void advance_all(bool helper = false);
  bool advance(Lock& lock, const ExchangeRef& exchange);
  void stage(Lock& lock, Exchange& exchange);
  void ask(Exchange& exchange) const;
  bool read(Lock& lock, Exchange& exchange);
  void fail(const ExchangeRef& exchange);
  void remove(const ExchangeRef& exchange);
  ExchangeRef writes(const engine::Tag* tag) const;
  bool is_over(const WorkerBoard& board) const;
  void wake_server(const Exchange& exchange) const;

  const int notify_;
  const int64_t patience_ms_;
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<WorkerDesk>> desks_;
  std::vector<ExchangeRef> open_;
  std::vector<ExchangeRef> failed_;
  WorkerDesk* helped_ = nullptr;  // where a helper sleeps
  std::atomic<bool> closed_{false};
  std::atomic<int64_t> steps_{0};
  std::atomic<int64_t> bytes_{0};
};

// Helps whatever lane has an exchange that writes the tag, for at most `ms`.
void help_with(const engine::TagRef& tag, int64_t ms);

}  // namespace mixflow::kvstore
