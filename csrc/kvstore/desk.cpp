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
                     const std::vector<int64_t>& versions) {
  check(layout.columns() == columns.size() && layout.slices() == versions.size() &&
            std::all_of(columns.begin(), columns.end(), [&](size_t c) { return c < bells_; }),
        "[lane] expected a bell per worker and a version per slice");
  auto made = std::make_unique<Open>(
      Open{next_++, Board{std::move(layout), memory}, std::move(columns), {}});
  const Board& board = made->board;
  made->armed.resize(board.layout.slices());
  for (size_t s = 0; s < board.layout.slices(); ++s) {
    board.slice(s).version.store(versions[s]);
    board.slice(s).durable.store(versions[s]);
    for (size_t c = 0; c < board.layout.columns(); ++c) board.staged(s, c).store(versions[s]);
  }
  board.open().store(1);
  boards_.push_back(std::move(made));
  return boards_.back()->number;
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
  boards_.erase(std::find_if(boards_.begin(), boards_.end(),
                             [&](const auto& other) { return other.get() == &open; }));
}

void ServerDesk::arm(int number, size_t slice, DType dtype, const LedgerPlace* ledger,
                     Update update) {
  check(dtype == DType::float32 || dtype == DType::float64,
        "[lane] expected float32 or float64, got ", name_of(dtype));
  Open& open = find(number);
  Armed& armed = open.armed.at(slice);
  armed.on = true;
  armed.dtype = dtype;
  armed.has_ledger = ledger != nullptr;
  if (ledger) armed.ledger = *ledger;
  armed.update = std::move(update);
  armed.first = open.board.slice(slice).version.load();
}

void ServerDesk::disarm(int number, size_t slice) {
  Armed& armed = find(number).armed.at(slice);
  armed.on = false;
  armed.update = {};
}

void ServerDesk::publish(int number, size_t slice, int64_t version, bool durable) {
  const Board& board = find(number).board;
  Slice& words = board.slice(slice);
  if (words.version.load() < version) count(board, slice);
  if (durable) words.durable.store(version, std::memory_order_seq_cst);
  words.version.store(version, std::memory_order_seq_cst);
}

void ServerDesk::count(const Board& board, size_t slice) {
  bytes_.fetch_add(static_cast<int64_t>(board.layout.bytes(slice) * board.layout.columns()),
                   std::memory_order_relaxed);
}

void ServerDesk::ring_board(const Open& open) {
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

// `placed`: the value is in the area already.
void ServerDesk::commit(Open& open, size_t slice, int64_t version, bool placed) {
  Armed& armed = open.armed[slice];
  if (armed.has_ledger) {
    LedgerPlace& place = armed.ledger;
    char* area = place.unused();
    const uint64_t rounds = static_cast<uint64_t>(version - place.base);
    const uint64_t parts = rounds * open.columns.size();
    const uint64_t head[4] = {place.text.size(), place.value_at, rounds, parts};
    std::memcpy(area + 8, head, sizeof head);
    std::memcpy(area + 40, place.text.data(), place.text.size());
    char* to = area + place.value_at;
    const auto put = [&to](const char* from, size_t bytes) {
      copy_bytes(to, from, bytes);
      to += (bytes + kLedgerAlign - 1) / kLedgerAlign * kLedgerAlign;
    };
    if (!placed) put(open.board.value(slice), open.board.layout.bytes(slice));
    for (const auto& [from, bytes] : armed.update.states) put(from, bytes);
    // The one store that makes it count.
    reinterpret_cast<std::atomic<uint64_t>*>(area)->store(++place.sequence,
                                                          std::memory_order_seq_cst);
    place.current = 1 - place.current;
  }
  open.board.slice(slice).durable.store(version, std::memory_order_seq_cst);
}

// Whether the desk closes the slice's open round.
bool ServerDesk::takes(const Open& open, size_t slice) const {
  const Armed& armed = open.armed[slice];
  return armed.on && open.board.slice(slice).version.load() < armed.update.last;
}

void ServerDesk::close_round(Open& open, size_t slice) {
  const Board& board = open.board;
  Armed& armed = open.armed[slice];
  // A large sum that is the value goes to the ledger on the way: to read it again costs more.
  const size_t bytes = board.layout.bytes(slice);
  char* target = armed.update.sum ? armed.update.sum : board.value(slice);
  char* also = nullptr;
  if (bytes >= kStreamBytes && armed.has_ledger && !armed.update.sum) {
    char* place = armed.ledger.unused() + armed.ledger.value_at;
    if (can_stream(target) && can_stream(place)) also = place;
  }
  if (armed.dtype == DType::float32) {
    sum<float>(board, slice, target, also);
  } else {
    sum<double>(board, slice, target, also);
  }
  const int64_t version = board.slice(slice).version.load() + 1;
  if (armed.update.sum) {
    armed.update.run(version - 1 - armed.first);
    if (armed.update.count) ++*armed.update.count;
  }
  ++rounds_;
  count(board, slice);
  if (bytes < kLaterBytes || also) {
    commit(open, slice, version, also != nullptr);
  } else {
    // After a crash the same pushes give the same value: it may be read before it is durable.
    uncommitted_.emplace_back(&open, slice);
  }
  board.slice(slice).version.store(version, std::memory_order_seq_cst);
}

// Closes what is complete and armed; `ready`: what is complete and not.
bool ServerDesk::look(std::vector<Ready>* ready) {
  bool closed = false;
  for (const auto& open : boards_) {
    bool rung = false;
    for (size_t s = 0; s < open->armed.size(); ++s) {
      if (!open->board.complete(s)) continue;
      if (!takes(*open, s)) {
        ready->push_back({open->number, s});
        continue;
      }
      close_round(*open, s);
      rung = true;
    }
    if (rung) ring_board(*open);
    closed = closed || rung;
  }
  for (auto& [open, slice] : uncommitted_) {
    commit(*open, slice, open->board.slice(slice).version.load(), false);
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
