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
// the value begins, rounds and parts beyond that text, workers with clocks of their own), the text,
// (worker, steps beyond the text) of these, the value. `mixflow/kvstore/server/slice_file.py` says
// the same.
struct LedgerPlace {
  char* areas[2] = {nullptr, nullptr};
  int current = 0;  // the area that counts
  uint64_t sequence = 0;
  size_t value_at = 0;  // from the start of an area
  std::string text;  // it tells of the slice as it stands when this is given

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
  // After so many the caller closes the rounds.
  int64_t rounds = std::numeric_limits<int64_t>::max();
};

// Steps that a worker may be ahead of the slowest one where it may be any number.
constexpr int64_t kUnbounded = std::numeric_limits<int64_t>::max();

// A slice of which each worker has its own board: where its value lies, which all of them change,
// and how many steps ahead of the slowest worker one may read it. Boards with the same home are of
// the same slice.
struct Home {
  char* value = nullptr;
  int64_t staleness = kUnbounded;
};

// Not thread-safe: the server's thread has it.
class ServerDesk {
 public:
  ServerDesk(char* desk, size_t bells) : desk_(desk), bells_(bells) {}
  ServerDesk(const ServerDesk&) = delete;
  ServerDesk& operator=(const ServerDesk&) = delete;

  // Opens a board; every slice stands at its version, with a value in place.
  // columns: the bell of each worker. homes: by slice, for a board of one worker's own; its versions
  // are the worker's steps.
  int open(Layout layout, char* memory, std::vector<size_t> columns,
           const std::vector<int64_t>& versions, const std::vector<Home>& homes = {});
  // For good; wakes every worker. Its memory is not touched any more.
  void close(int board);

  // Rounds of this slice are closed here from now on: those of all boards with its home.
  void arm(int board, size_t slice, DType dtype, const LedgerPlace* ledger, Update update);
  // No more; returns nothing that is not told by the words.
  void disarm(int board, size_t slice);

  // A round was closed by the caller, who has written the value and committed it, or not yet. Of an
  // own board it is committed; the worker gets the value when it may read.
  void publish(int board, size_t slice, int64_t version, bool durable);
  // Steps of the slowest worker that has no board of a slice with homes.
  void set_floor(int board, size_t slice, int64_t steps);
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
  struct Open;
  struct Place {
    Open* open;
    size_t slice;
    int64_t rounds = 0;  // closed here since the slice was armed
  };
  // How the rounds of a slice are closed; boards with one home share it.
  struct Track {
    Home home;
    int64_t floor = std::numeric_limits<int64_t>::max();
    std::vector<Place> places;
    bool on = false;
    DType dtype = DType::float32;
    bool has_ledger = false;
    LedgerPlace ledger;
    Update update;
    int64_t rounds = 0;  // as those of all places
  };
  struct Open {
    int number;
    Board board;
    std::vector<size_t> columns;
    std::vector<std::shared_ptr<Track>> tracks;
    bool rung = false;  // its workers are to be woken
  };

  Open& find(int number);
  std::shared_ptr<Track> track_of(const Home& home) const;
  bool look(std::vector<Ready>* ready);
  bool takes(const Open& open, size_t slice) const;
  void close_round(Open& open, size_t slice);
  bool release(Open& open, size_t slice);
  bool release_all(Open& open);
  void commit(Open& open, size_t slice, bool placed);
  void write_area(const Track& track, const char* value, size_t bytes, size_t parts, bool placed);
  void ring_board(Open& open);
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
