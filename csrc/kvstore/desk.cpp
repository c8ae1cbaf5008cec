#include "kvstore/desk.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/stream.h"

namespace mixflow::kvstore {
namespace {

constexpr size_t kParallelBytes = 2 << 20;  // from here on a second thread is worth its start
constexpr size_t kBlock = 4096;             // elements that are summed at a time: they fit L1
constexpr size_t kLaterBytes = 256 << 10;   // such a value is read before it is committed
constexpr int64_t kAtOnceMs = 50;           // rounds between two looks of the caller
constexpr size_t kLedgerAlign = 64;         // of the arrays in an area of a ledger file
constexpr size_t kAreaHead = 48;            // bytes before its text
constexpr size_t kPairBytes = 16;           // of a worker and its steps

// Where the clocks of workers are in an area.
size_t pairs_at(const LedgerPlace& place) { return (kAreaHead + place.text.size() + 7) / 8 * 8; }

template <class T>
void sum_range(const std::vector<const T*>& from, T* to, size_t begin, size_t end) {
  for (size_t at = begin; at < end; at += kBlock) {
    const size_t stop = std::min(end, at + kBlock);
    const T* first = from[0];
    if (from.size() == 1) {
      std::memcpy(to + at, first + at, (stop - at) * sizeof(T));
      continue;
    }
    const T* second = from[1];
    for (size_t i = at; i < stop; ++i) to[i] = first[i] + second[i];
    for (size_t k = 2; k < from.size(); ++k) {
      const T* next = from[k];
      for (size_t i = at; i < stop; ++i) to[i] += next[i];
    }
  }
}

// Runs work(begin, end) over halves of `count` items, on two threads where that is worth it.
void in_halves(size_t count, size_t bytes, const std::function<void(size_t, size_t)>& work) {
  if (bytes < kParallelBytes) return work(0, count);
  const size_t half = count / 2 / kStreamLine * kStreamLine;
  std::thread other(work, 0, half);
  work(half, count);
  other.join();
}

// Past the caches, and to `also` on the way if there is one.
template <class T>
void stream_sum(const std::vector<const T*>& from, T* to, T* also, size_t begin, size_t end) {
  constexpr size_t kStep = kStreamLine / sizeof(T);
  size_t at = begin;
  for (; at + kStep <= end; at += kStep) {
    T line[kStep];
    std::memcpy(line, from[0] + at, sizeof line);
    for (size_t k = 1; k < from.size(); ++k) {
      const T* next = from[k] + at;
      for (size_t i = 0; i < kStep; ++i) line[i] += next[i];
    }
    stream_line(to + at, line);
    if (also) stream_line(also + at, line);
  }
  stream_end();
  sum_range(from, to, at, end);
  if (also) std::memcpy(also + at, to + at, (end - at) * sizeof(T));
}

// Sums a round's gradients; `also`: a second place for large sums, or nullptr.
template <class T>
void sum(const Board& board, size_t slice, char* target, char* second) {
  std::vector<const T*> from;
  for (size_t c = 0; c < board.layout.columns(); ++c) {
    from.push_back(reinterpret_cast<const T*>(board.gradient(slice, c)));
  }
  T* to = reinterpret_cast<T*>(target);
  T* also = reinterpret_cast<T*>(second);
  const size_t bytes = board.layout.bytes(slice);
  const bool streams = bytes >= kStreamBytes && can_stream(to);
  in_halves(bytes / sizeof(T), bytes, [&](size_t begin, size_t end) {
    if (streams) {
      stream_sum(from, to, also, begin, end);
    } else {
      sum_range(from, to, begin, end);
    }
  });
}

// Takes the bell of a worker off a channel; true if that was all there is.
bool only_rung(int descriptor) {
  char byte = 0;
  while (true) {
    const ssize_t size = recv(descriptor, &byte, 1, MSG_PEEK | MSG_TRUNC | MSG_DONTWAIT);
    if (size < 0) return true;
    if (size != 1) return false;
    if (recv(descriptor, &byte, 1, MSG_DONTWAIT) != 1) return true;
  }
}

std::vector<pollfd> polled(const std::vector<int>& others, const std::vector<int>& channels) {
  std::vector<pollfd> made;
  for (int descriptor : others) made.push_back({descriptor, POLLIN, 0});
  for (int descriptor : channels) made.push_back({descriptor, POLLIN, 0});
  return made;
}

}  // namespace

int ServerDesk::open(Layout layout, char* memory, std::vector<size_t> columns,
                     const std::vector<int64_t>& versions, const std::vector<Home>& homes) {
  check(layout.columns() == columns.size() && layout.slices() == versions.size() &&
            std::all_of(columns.begin(), columns.end(), [&](size_t c) { return c < bells_; }),
        "[lane] expected a bell per worker and a version per slice");
  const bool own = !homes.empty();
  check(!own || (homes.size() == layout.slices() && columns.size() == 1),
        "[lane] expected a home per slice and one worker, got ", homes.size(), " and ",
        columns.size());
  auto made = std::make_unique<Open>(
      Open{next_++, Board{std::move(layout), memory, own}, std::move(columns), {}});
  const Board& board = made->board;
  for (size_t s = 0; s < board.layout.slices(); ++s) {
    made->tracks.push_back(own ? track_of(homes[s]) : std::make_shared<Track>());
    check(!made->tracks.back()->on, "[lane] expected slices that are not armed");
  }
  for (size_t s = 0; s < board.layout.slices(); ++s) {
    made->tracks[s]->places.push_back({made.get(), s});
    board.slice(s).version.store(versions[s]);
    board.slice(s).durable.store(versions[s]);
    board.slice(s).served.store(0);
    for (size_t c = 0; c < board.layout.columns(); ++c) {
      board.staged(s, c).store(versions[s]);
      board.asked(s, c).store(0);
    }
  }
  board.open().store(1);
  boards_.push_back(std::move(made));
  return boards_.back()->number;
}

std::shared_ptr<ServerDesk::Track> ServerDesk::track_of(const Home& home) const {
  for (const auto& open : boards_) {
    for (const auto& track : open->tracks) {
      if (track->home.value == home.value) return track;
    }
  }
  auto made = std::make_shared<Track>();
  made->home = home;
  return made;
}

ServerDesk::Open& ServerDesk::find(int number) {
  for (auto& open : boards_) {
    if (open->number == number) return *open;
  }
  throw Error(concat("[lane] expected an open board, got ", number));
}

const Board& ServerDesk::board(int number) const {
  return const_cast<ServerDesk*>(this)->find(number).board;
}

void ServerDesk::close(int number) {
  Open& open = find(number);
  open.board.open().store(0, std::memory_order_seq_cst);
  for (size_t column : open.columns) {
    ring(bell(column).main, true);
    ring(bell(column).pump, true);
  }
  for (const auto& track : open.tracks) {
    auto& places = track->places;
    places.erase(std::remove_if(places.begin(), places.end(),
                                [&](const Place& place) { return place.open == &open; }),
                 places.end());
  }
  boards_.erase(std::find_if(boards_.begin(), boards_.end(),
                             [&](const auto& other) { return other.get() == &open; }));
}

void ServerDesk::arm(int number, size_t slice, DType dtype, const LedgerPlace* ledger,
                     Update update) {
  check(dtype == DType::float32 || dtype == DType::float64,
        "[lane] expected float32 or float64, got ", name_of(dtype));
  Open& open = find(number);
  Track& track = *open.tracks.at(slice);
  if (ledger) {
    const size_t pairs = open.board.own ? track.places.size() : 0;
    check(pairs_at(*ledger) + pairs * kPairBytes <= ledger->value_at,
          "[lane] expected room for the clocks of ", pairs, " workers in the ledger");
    track.ledger = *ledger;
  }
  track.on = true;
  track.dtype = dtype;
  track.has_ledger = ledger != nullptr;
  track.update = std::move(update);
  track.rounds = 0;
  for (Place& place : track.places) place.rounds = 0;
}

void ServerDesk::disarm(int number, size_t slice) {
  Track& track = *find(number).tracks.at(slice);
  track.on = false;
  track.update = {};
}

void ServerDesk::publish(int number, size_t slice, int64_t version, bool durable) {
  const Board& board = find(number).board;
  Slice& words = board.slice(slice);
  if ((board.own ? words.durable : words.version).load() < version) count(board, slice);
  if (durable) words.durable.store(version, std::memory_order_seq_cst);
  if (!board.own) words.version.store(version, std::memory_order_seq_cst);
}

void ServerDesk::set_floor(int number, size_t slice, int64_t steps) {
  find(number).tracks.at(slice)->floor = steps;
}

void ServerDesk::count(const Board& board, size_t slice) {
  bytes_.fetch_add(static_cast<int64_t>(board.layout.bytes(slice) * board.layout.columns()),
                   std::memory_order_relaxed);
}

void ServerDesk::ring_board(Open& open) {
  open.rung = false;
  for (size_t column : open.columns) {
    Bell& worker = bell(column);
    const bool main = worker.main_waits.load(std::memory_order_seq_cst) != 0;
    ring(worker.main, main);
    ring(worker.pump, !main && worker.pending.load(std::memory_order_seq_cst) != 0);
  }
}

void ServerDesk::ring_all() {
  for (const auto& open : boards_) ring_board(*open);
}

// Fills the area that is not in use, and makes it count. `placed`: the value is in it already.
void ServerDesk::write_area(const Track& track, const char* value, size_t bytes, size_t columns,
                            bool placed) {
  const LedgerPlace& place = track.ledger;
  char* area = place.unused();
  const bool own = track.home.value != nullptr;
  const uint64_t head[5] = {place.text.size(), place.value_at,
                            static_cast<uint64_t>(track.rounds), track.rounds * columns,
                            own ? track.places.size() : 0};
  std::memcpy(area + 8, head, sizeof head);
  std::memcpy(area + kAreaHead, place.text.data(), place.text.size());
  if (own) {
    char* pair = area + pairs_at(place);
    for (const Place& one : track.places) {
      const int64_t words[2] = {static_cast<int64_t>(one.open->columns[0]), one.rounds};
      std::memcpy(pair, words, kPairBytes);
      pair += kPairBytes;
    }
  }
  char* to = area + place.value_at;
  const auto put = [&to](const char* from, size_t size) {
    copy_bytes(to, from, size);
    to += (size + kLedgerAlign - 1) / kLedgerAlign * kLedgerAlign;
  };
  if (!placed) put(value, bytes);
  for (const auto& [from, size] : track.update.states) put(from, size);
}

void ServerDesk::commit(Open& open, size_t slice, bool placed) {
  Track& track = *open.tracks[slice];
  const Board& board = open.board;
  if (track.has_ledger) {
    const char* value = board.own ? track.home.value : board.value(slice);
    write_area(track, value, board.layout.bytes(slice), open.columns.size(), placed);
    LedgerPlace& place = track.ledger;
    // The one store that makes it count.
    reinterpret_cast<std::atomic<uint64_t>*>(place.unused())
        ->store(++place.sequence, std::memory_order_seq_cst);
    place.current = 1 - place.current;
  }
  board.slice(slice).durable.fetch_add(1, std::memory_order_seq_cst);
}

// Whether the desk closes the slice's open round.
bool ServerDesk::takes(const Open& open, size_t slice) const {
  const Track& track = *open.tracks[slice];
  return track.on && track.rounds < track.update.rounds;
}

void ServerDesk::close_round(Open& open, size_t slice) {
  const Board& board = open.board;
  Track& track = *open.tracks[slice];
  // A large sum that is the value goes to the ledger on the way: to read it again costs more.
  const size_t bytes = board.layout.bytes(slice);
  char* value = board.own ? track.home.value : board.value(slice);
  char* target = track.update.sum ? track.update.sum : value;
  char* also = nullptr;
  if (bytes >= kStreamBytes && track.has_ledger && !track.update.sum) {
    char* place = track.ledger.unused() + track.ledger.value_at;
    if (can_stream(target) && can_stream(place)) also = place;
  }
  if (track.dtype == DType::float32) {
    sum<float>(board, slice, target, also);
  } else {
    sum<double>(board, slice, target, also);
  }
  if (track.update.sum) {
    track.update.run(track.rounds);
    if (track.update.count) ++*track.update.count;
  }
  ++track.rounds;
  for (Place& place : track.places) place.rounds += place.open == &open && place.slice == slice;
  ++rounds_;
  count(board, slice);
  if (board.own || bytes < kLaterBytes || also) {
    commit(open, slice, also != nullptr);
  } else {
    // After a crash the same pushes give the same value: it may be read before it is durable.
    uncommitted_.emplace_back(&open, slice);
  }
  if (!board.own) board.slice(slice).version.fetch_add(1, std::memory_order_seq_cst);
}

// Gives the worker of an own board the value that it waits for; false if it waits for none, or may
// not read yet.
bool ServerDesk::release(Open& open, size_t slice) {
  const Board& board = open.board;
  Slice& words = board.slice(slice);
  const int64_t applied = words.durable.load();
  const int64_t asked = board.asked(slice, 0).load(std::memory_order_seq_cst);
  if (words.version.load() == applied && words.served.load() == asked) return false;
  const Track& track = *open.tracks[slice];
  int64_t slowest = track.floor;
  for (const Place& place : track.places) {
    slowest = std::min(slowest, place.open->board.slice(place.slice).durable.load());
  }
  if (slowest < applied - track.home.staleness) return false;
  copy_bytes(board.value(slice), track.home.value, board.layout.bytes(slice));
  words.served.store(asked, std::memory_order_seq_cst);
  words.version.store(applied, std::memory_order_seq_cst);
  return true;
}

bool ServerDesk::release_all(Open& open) {
  bool any = false;
  for (size_t s = 0; open.board.own && s < open.tracks.size(); ++s) any = release(open, s) || any;
  return any;
}

// Closes what is complete and armed; `ready`: what is complete and not.
bool ServerDesk::look(std::vector<Ready>* ready) {
  bool closed = false;
  for (const auto& open : boards_) {
    for (size_t s = 0; s < open->tracks.size(); ++s) {
      if (!open->board.complete(s)) continue;
      if (!takes(*open, s)) {
        ready->push_back({open->number, s});
        continue;
      }
      close_round(*open, s);
      open->rung = closed = true;
    }
    if (open->rung && !open->board.own) ring_board(*open);
  }
  // Now the clocks of all workers have moved.
  for (const auto& open : boards_) {
    if (release_all(*open)) open->rung = closed = true;
    if (open->rung) ring_board(*open);
  }
  for (auto& [open, slice] : uncommitted_) {
    commit(*open, slice, false);
    ring_board(*open);
  }
  uncommitted_.clear();
  return closed;
}

std::vector<ServerDesk::Ready> ServerDesk::serve(const std::vector<int>& others,
                                                 const std::vector<int>& channels, int64_t ms) {
  std::vector<pollfd> watched = polled(others, channels);
  const int64_t began = now_ms();
  std::vector<Ready> ready;
  bool any = false;
  while (true) {
    const int64_t spent = now_ms() - began;
    ready.clear();  // what the second look has found is found again
    if (look(&ready)) any = true;
    if (!ready.empty() || spent >= ms || (any && spent >= kAtOnceMs)) break;
    sleeps().store(1, std::memory_order_seq_cst);
    // Again: a worker that had looked before would not have rung.
    const bool late = look(&ready);
    any = any || late;
    const int64_t wait = any ? std::min(ms, kAtOnceMs) - spent : ms - spent;
    const bool sleep = !late && ready.empty();
    const int found = poll(watched.data(), watched.size(), sleep ? static_cast<int>(wait) : 0);
    sleeps().store(0, std::memory_order_seq_cst);
    if (found <= 0) continue;
    bool asked = false;
    for (size_t i = 0; i < watched.size(); ++i) {
      if (watched[i].revents == 0) continue;
      if (i < others.size() || (watched[i].revents & ~POLLIN) || !only_rung(watched[i].fd)) {
        asked = true;
      }
    }
    if (asked) break;
  }
  return ready;
}

}  // namespace mixflow::kvstore
