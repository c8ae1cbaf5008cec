// The server's side of its boards: closes rounds, or says which ones are complete.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "kvstore/board.h"

namespace mixflow::kvstore {

// Where a slice's ledger file takes a value: the head of an area (sequence, bytes of text, where
// the value begins, rounds and parts beyond that text), the text, the value.
// `mixflow/kvstore/server/slice_file.py` says the same.
struct LedgerPlace {
  char* areas[2] = {nullptr, nullptr};
  int current = 0;  // the area that counts
  uint64_t sequence = 0;
  size_t value_at = 0;  // from the start of an area
  std::string text;
  int64_t base = 0;  // the version that the text tells of

  char* unused() const { return areas[1 - current]; }
};

// What a round's sum does to a slice. Without `sum` it replaces the value.
struct Update {
  char* sum = nullptr;  // where the sum goes, as long as the value
  // Changes value and states by it, in place; counts the rounds since this was given. It throws
  // what ends the server.
  std::function<void(int64_t round)> run;
  // What the ledger takes beside the value, in its order.
  std::vector<std::pair<const char*, size_t>> states;
  int64_t* count = nullptr;  // one of them: updates so far
  // From this version on the caller closes the rounds.
  int64_t last = std::numeric_limits<int64_t>::max();
};

// Not thread-safe: the server's thread has it.
class ServerDesk {
 public:
  ServerDesk(char* desk, size_t bells) : desk_(desk), bells_(bells) {}
  ServerDesk(const ServerDesk&) = delete;
  ServerDesk& operator=(const ServerDesk&) = delete;

  // Opens a board whose memory is zero; every slice stands at its version, with a value in place.
  // columns: the bell of each worker.
  int open(Layout layout, char* memory, std::vector<size_t> columns,
           const std::vector<int64_t>& versions);
  // For good; wakes every worker. Its memory is not touched any more.
  void close(int board);

  // Rounds of this slice are closed here from now on.
  void arm(int board, size_t slice, DType dtype, const LedgerPlace* ledger, Update update);
  // No more; returns nothing that is not told by the words.
  void disarm(int board, size_t slice);

  // A round was closed by the caller, who has written the value and committed it, or not yet.
  void publish(int board, size_t slice, int64_t version, bool durable);
  // Wakes the workers that wait.
  void ring_all();

  struct Ready {
    int board;
    size_t slice;
  };
  // Serves until one of these: a round is complete that the caller has to close, a descriptor has
  // something for the caller, `ms` have passed. `channels`: descriptors of workers, whose datagrams
  // of one byte only wake.
  std::vector<Ready> serve(const std::vector<int>& others, const std::vector<int>& channels,
                           int64_t ms);

  const Board& board(int number) const;
  int64_t rounds() const { return rounds_; }
  // Of the gradients of all closed rounds, whoever closed them; as many of values are read. Of any
  // thread.
  int64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

 private:
  struct Armed {
    bool on = false;
    DType dtype = DType::float32;
    bool has_ledger = false;
    LedgerPlace ledger;
    Update update;
    int64_t first = 0;  // version at which it was armed
  };
  struct Open {
    int number;
    Board board;
    std::vector<size_t> columns;
    std::vector<Armed> armed;
  };

  Open& find(int number);
  bool look(std::vector<Ready>* ready);
  bool takes(const Open& open, size_t slice) const;
  void close_round(Open& open, size_t slice);
  void commit(Open& open, size_t slice, int64_t version, bool placed);
  void ring_board(const Open& open);
  void count(const Board& board, size_t slice);
  Bell& bell(size_t number) const { return reinterpret_cast<Bell*>(desk_)[1 + number]; }
  std::atomic<uint32_t>& sleeps() const { return reinterpret_cast<Desk*>(desk_)->sleeps; }

  char* desk_;
  size_t bells_;
  std::vector<std::unique_ptr<Open>> boards_;
  std::vector<std::pair<Open*, size_t>> uncommitted_;
  int next_ = 1;
  int64_t rounds_ = 0;
  std::atomic<int64_t> bytes_{0};
};

}  // namespace mixflow::kvstore
