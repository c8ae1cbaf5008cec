#include "kvstore/lane.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "base/error.h"
#include "base/stream.h"

namespace mixflow::kvstore {
namespace {

constexpr int64_t kIdleMs = 500;    // a pump without work looks after its bell so often
constexpr int64_t kPendingMs = 50;  // and so often with work: a server may have died

// Lanes that threads may help. Never destroyed: threads may outlive main().
struct Lanes {
  std::mutex mutex;
  std::vector<std::weak_ptr<WorkerLane>> all;
  std::atomic<int> count{0};
};

Lanes& lanes() {
  static Lanes& all = *std::make_unique<Lanes>().release();
  return all;
}

}  // namespace

WorkerDesk::~WorkerDesk() {
  if (channel >= 0) ::close(channel);
}

std::shared_ptr<WorkerLane> WorkerLane::make(int notify, int64_t patience_ms) {
  const std::shared_ptr<WorkerLane> made(new WorkerLane(notify, patience_ms));
  const std::lock_guard<std::mutex> lock(lanes().mutex);
  auto& all = lanes().all;
  all.erase(std::remove_if(all.begin(), all.end(), [](const auto& one) { return one.expired(); }),
            all.end());
  all.push_back(made);
  ++lanes().count;
  return made;
}

std::shared_ptr<WorkerDesk> WorkerLane::add_desk(char* desk, size_t number, int channel,
                                                 std::shared_ptr<void> keep) {
  join_ended();
  auto made = std::make_shared<WorkerDesk>();
  made->bell = reinterpret_cast<Bell*>(desk) + 1 + number;
  made->server_sleeps = &reinterpret_cast<Desk*>(desk)->sleeps;
  made->channel = dup(channel);
  made->keep = std::move(keep);
  // An earlier life of this worker may have died while it waited.
  made->bell->main_waits.store(0);
  made->bell->pending.store(0);
  const Lock lock(mutex_);
  check(!closed_, "[lane] expected an open lane, got a closed one");
  desks_.push_back(made);
  made->pump = std::thread([this, made] { pump(*made); });
  return made;
}

void WorkerLane::drop_desk(const std::shared_ptr<WorkerDesk>& desk) {
  desk->lost = true;
  ring(desk->bell->pump, true);
}

// A thread may not be waited for where it may wait for the caller: those that have ended are
// joined when the next one begins.
void WorkerLane::join_ended() {
  std::vector<std::shared_ptr<WorkerDesk>> ended;
  {
    const Lock lock(mutex_);
    const auto first = std::stable_partition(desks_.begin(), desks_.end(),
                                             [](const auto& desk) { return !desk->ended; });
    ended.assign(first, desks_.end());
    desks_.erase(first, desks_.end());
  }
  for (const auto& desk : ended) desk->pump.join();
}

WorkerBoardRef WorkerLane::open(std::shared_ptr<WorkerDesk> desk, Layout layout, char* memory,
                                size_t column, bool own, std::shared_ptr<void> keep) {
  check(column < layout.columns(), "[lane] expected a column of the board, got ", column);
  auto made = std::make_shared<WorkerBoard>(
      WorkerBoard{Board{std::move(layout), memory, own}, column, std::move(desk), std::move(keep)});
  return made;
}

bool WorkerLane::is_over(const WorkerBoard& board) const {
  return board.dead || board.board.open().load(std::memory_order_seq_cst) == 0;
}

bool WorkerLane::over(const WorkerBoardRef& board) const {
  const Lock lock(mutex_);
  return is_over(*board);
}

void WorkerLane::submit(const ExchangeRef& exchange) {
  exchange->began_ms = now_ms();
  exchange->staged = !exchange->push;
  {
    const Lock lock(mutex_);
    open_.push_back(exchange);
    for (const Piece& piece : exchange->pieces) ++piece.board->desk->bell->pending;
  }
  advance_all();
}

// Copies the gradients to their places if those are free.
void WorkerLane::stage(Lock& lock, Exchange& exchange) {
  for (const Piece& piece : exchange.pieces) {
    const WorkerBoard& board = *piece.board;
    const int64_t durable = board.board.slice(piece.slice).durable.load();
    if (durable < board.board.staged(piece.slice, board.column).load()) return;
  }
  exchange.busy = true;
  lock.unlock();
  size_t bytes = 0;
  for (const Piece& piece : exchange.pieces) {
    const Board& board = piece.board->board;
    bytes += board.layout.bytes(piece.slice);
    copy_bytes(board.gradient(piece.slice, piece.board->column), piece.from,
               board.layout.bytes(piece.slice));
  }
  lock.lock();
  exchange.busy = false;
  for (const Piece& piece : exchange.pieces) {
    if (piece.board->dead) return;
  }
  for (const Piece& piece : exchange.pieces) {
    piece.board->board.staged(piece.slice, piece.board->column).fetch_add(1);
  }
  exchange.staged = true;
  steps_ += static_cast<int64_t>(exchange.pieces.size());
  bytes_ += static_cast<int64_t>(bytes);
  wake_server(exchange);
}

// The value of an own board is that of its worker's last step: others have gone on since then.
void WorkerLane::ask(Exchange& exchange) const {
  exchange.asked = true;
  for (const Piece& piece : exchange.pieces) {
    const WorkerBoard& board = *piece.board;
    if (board.board.own) board.board.asked(piece.slice, board.column).fetch_add(1);
  }
  wake_server(exchange);
}

// Whoever gives it something to do wakes the server, unless it is awake.
void WorkerLane::wake_server(const Exchange& exchange) const {
  for (const Piece& piece : exchange.pieces) {
    const WorkerBoard& board = *piece.board;
    if (board.desk->server_sleeps->load(std::memory_order_seq_cst) == 0) continue;
    if (!board.board.wants(piece.slice)) continue;
    board.desk->server_sleeps->store(0, std::memory_order_seq_cst);
    send(board.desk->channel, "!", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
  }
}

// Copies out the values that are there. True when all have been.
bool WorkerLane::read(Lock& lock, Exchange& exchange) {
  bool all = true;
  exchange.busy = true;
  lock.unlock();
  for (Piece& piece : exchange.pieces) {
    if (piece.read) continue;
    const WorkerBoard& board = *piece.board;
    const int64_t wanted = board.board.staged(piece.slice, board.column).load();
    const int64_t asked = board.board.asked(piece.slice, board.column).load();
    const Slice& words = board.board.slice(piece.slice);
    if (words.version.load(std::memory_order_seq_cst) < wanted ||
        words.served.load(std::memory_order_seq_cst) < asked) {
      all = false;
      continue;
    }
    const size_t bytes = board.board.layout.bytes(piece.slice);
    for (char* to : piece.to) copy_bytes(to, board.board.value(piece.slice), bytes);
    piece.read = true;
  }
  lock.lock();
  exchange.busy = false;
  return all;
}

// Goes on with an exchange as far as it can now; true when it has ended well.
bool WorkerLane::advance(Lock& lock, const ExchangeRef& exchange) {
  Exchange& e = *exchange;
  // Threads go over a copy of the list: another one may have ended it meanwhile.
  if (e.busy || e.over) return false;
  // Nothing is put on a board that is over. What is only read may have been pushed by messages
  // since then: the board does not know of it.
  if (!e.staged || !e.push) {
    const bool over = std::any_of(e.pieces.begin(), e.pieces.end(),
                                  [this](const Piece& p) { return is_over(*p.board); });
    if (over) {
      fail(exchange);
      return false;
    }
  }
  if (!e.staged) stage(lock, e);
  if (!e.push && !e.asked) ask(e);
  if (e.staged && (!e.pull || read(lock, e))) {
    remove(exchange);
    return true;
  }
  const bool over =
      closed_ || now_ms() - e.began_ms > patience_ms_ ||
      std::any_of(e.pieces.begin(), e.pieces.end(),
                  [this](const Piece& p) { return !p.read && is_over(*p.board); });
  if (over) fail(exchange);
  return false;
}

void WorkerLane::remove(const ExchangeRef& exchange) {
  exchange->over = true;
  for (const Piece& piece : exchange->pieces) --piece.board->desk->bell->pending;
  open_.erase(std::remove(open_.begin(), open_.end(), exchange), open_.end());
}

void WorkerLane::fail(const ExchangeRef& exchange) {
  for (const Piece& piece : exchange->pieces) piece.board->dead = true;
  remove(exchange);
  failed_.push_back(exchange);
  if (helped_) ring(helped_->bell->main, true);  // it may sleep until this one has ended
  // A full pipe holds a byte that has not been seen.
  const ssize_t written = write(notify_, "x", 1);
  static_cast<void>(written);
}

void WorkerLane::advance_all(bool helper) {
  std::vector<ExchangeRef> ended;
  {
    Lock lock(mutex_);
    const std::vector<ExchangeRef> now = open_;
    for (const ExchangeRef& exchange : now) {
      if (advance(lock, exchange)) ended.push_back(exchange);
    }
    // It may sleep on another server's bell than the one that rang.
    if (!ended.empty() && helped_ && !helper) ring(helped_->bell->main, true);
  }
  for (const ExchangeRef& exchange : ended) exchange->done(nullptr);
}

void WorkerLane::pump(WorkerDesk& desk) {
  while (true) {
    const uint32_t seen = desk.bell->pump.load(std::memory_order_seq_cst);
    const bool last = closed_ || desk.lost;
    advance_all();  // once more where the desk is lost: what is on its boards fails
    if (last) break;
    sleep_on(desk.bell->pump, seen, desk.bell->pending.load() ? kPendingMs : kIdleMs);
  }
  desk.ended = true;
}

ExchangeRef WorkerLane::writes(const engine::Tag* tag) const {
  for (const ExchangeRef& exchange : open_) {
    for (const engine::TagRef& written : exchange->tags) {
      if (written.get() == tag) return exchange;
    }
  }
  return nullptr;
}

bool WorkerLane::help(const engine::Tag* tag, int64_t ms) {
  const int64_t end = now_ms() + ms;
  ExchangeRef found;
  std::shared_ptr<WorkerDesk> desk;
  {
    const Lock lock(mutex_);
    found = writes(tag);
    if (!found || helped_) return false;
    desk = found->pieces.front().board->desk;
    helped_ = desk.get();
  }
  bool ended = false;
  while (true) {
    const uint32_t seen = desk->bell->main.load(std::memory_order_seq_cst);
    desk->bell->main_waits.store(1, std::memory_order_seq_cst);
    advance_all(true);
    {
      const Lock lock(mutex_);
      ended = std::find(open_.begin(), open_.end(), found) == open_.end();
    }
    if (ended || now_ms() >= end) break;
    sleep_on(desk->bell->main, seen, end - now_ms());
  }
  desk->bell->main_waits.store(0, std::memory_order_seq_cst);
  {
    const Lock lock(mutex_);
    helped_ = nullptr;
  }
  advance_all();  // what became ready while the server took this thread for asleep
  return ended;
}

std::vector<WorkerLane::Words> WorkerLane::words(const WorkerBoardRef& board) const {
  std::vector<Words> found;
  for (size_t s = 0; s < board->board.layout.slices(); ++s) {
    const Slice& words = board->board.slice(s);
    found.push_back({board->board.staged(s, board->column).load(), words.durable.load(),
                     words.version.load()});
  }
  return found;
}

std::vector<WorkerLane::Words> WorkerLane::retire(const WorkerBoardRef& board) {
  const Lock lock(mutex_);
  board->dead = true;
  const std::vector<Words> found = words(board);
  for (const auto& desk : desks_) {  // whoever waits sees that it is over
    ring(desk->bell->main, true);
    ring(desk->bell->pump, true);
  }
  return found;
}

std::vector<ExchangeRef> WorkerLane::take_failed() {
  const Lock lock(mutex_);
  return std::exchange(failed_, {});
}

bool WorkerLane::has_failed() const {
  const Lock lock(mutex_);
  return !failed_.empty();
}

void WorkerLane::close() {
  if (closed_.exchange(true)) return;
  std::vector<std::shared_ptr<WorkerDesk>> desks;
  {
    const Lock lock(mutex_);  // `add_desk` may be about to add one, or to join some
    desks.swap(desks_);
  }
  for (const auto& desk : desks) {
    ring(desk->bell->main, true);
    ring(desk->bell->pump, true);
  }
  for (const auto& desk : desks) desk->pump.join();
  advance_all();  // fails what is left
  --lanes().count;
}

void help_with(const engine::TagRef& tag, int64_t ms) {
  if (lanes().count.load(std::memory_order_relaxed) == 0) return;
  std::vector<std::shared_ptr<WorkerLane>> all;
  {
    const std::lock_guard<std::mutex> lock(lanes().mutex);
    for (const auto& lane : lanes().all) {
      if (auto held = lane.lock()) all.push_back(std::move(held));
    }
  }
  for (const auto& lane : all) {
    if (lane->help(tag.get(), ms)) return;
  }
}

}  // namespace mixflow::kvstore
