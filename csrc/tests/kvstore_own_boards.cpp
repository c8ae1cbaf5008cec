// Boards of one worker each over values that all of them change, under stress: the server's desk and
// the lanes of its workers as threads of one process, so that the thread sanitizer sees both sides of
// every word and of every byte.
//
// Each push adds 1 to its worker's own elements. A read sees every step of its reader, of the others
// no fewer than were seen before, and under a staleness no fewer than that allows. Boards are closed
// at random and steps go by messages (`Mail`) then, to none of which anything is lost or counted twice.
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <future>
#include <random>
#include <thread>

#include "base/error.h"
#include "kvstore/desk.h"
#include "kvstore/lane.h"
#include "tests/check.h"

using namespace mixflow;
using namespace mixflow::kvstore;
using namespace mixflow::testing;

namespace {

constexpr size_t kWorkers = 3;
constexpr size_t kSlices = 3;
constexpr std::array<size_t, kSlices> kElements = {3, 1000, 30000};

using Memory = std::shared_ptr<char>;
using Clocks = std::array<int64_t, kSlices>;

Memory zeros(size_t bytes) {
  const size_t whole = (bytes + kPage - 1) / kPage * kPage;
  char* made = static_cast<char*>(std::aligned_alloc(kPage, whole));
  std::memset(made, 0, whole);
  return Memory(made, std::free);
}

Layout layout() {
  std::vector<size_t> bytes;
  for (size_t count : kElements) bytes.push_back(count * sizeof(float));
  return Layout(bytes, 1);
}

std::vector<float> gradient_of(size_t worker, size_t slice) {
  std::vector<float> made(kElements[slice]);
  for (size_t i = worker; i < made.size(); i += kWorkers) made[i] = 1;
  return made;
}

void add_to(char* value, const char* gradient, size_t slice) {
  float* to = reinterpret_cast<float*>(value);
  const float* from = reinterpret_cast<const float*>(gradient);
  for (size_t i = 0; i < kElements[slice]; ++i) to[i] += from[i];
}

class Draw {
 public:
  explicit Draw(unsigned seed) : draw_(seed) {}
  bool one_in(unsigned count) { return draw_() % count == 0; }

 private:
  std::minstd_rand draw_;
};

// What the server and a worker say to each other beside the board.
struct Mail {
  std::mutex mutex;
  std::condition_variable changed;
  int number = 0;  // of the worker's board; 0: none is open
  Memory board;
  Clocks clocks{};           // steps that the server has
  std::vector<Clocks> sent;  // steps that come by message; -1: none of that slice
  int64_t answered = 0;      // how many of these were taken
};

class Server {
 public:
  Server(std::array<Mail, kWorkers>& mail, std::vector<int> channels, int64_t staleness)
      : mail_(mail), channels_(std::move(channels)), staleness_(staleness), draw_(11) {
    check(pipe2(alarm_, O_NONBLOCK) == 0, "pipe");
    desk_memory_ = zeros(kLine * (1 + kWorkers));
    desk_ = std::make_unique<ServerDesk>(desk_memory_.get(), kWorkers);
    for (size_t s = 0; s < kSlices; ++s) {
      homes_.push_back(zeros(kElements[s] * sizeof(float)));
      sums_.push_back(zeros(kElements[s] * sizeof(float)));
      ledgers_.push_back(zeros(2 * area(s)));
    }
  }
  ~Server() {
    for (int end : alarm_) ::close(end);
  }

  const Memory& desk_memory() const { return desk_memory_; }
  void wake() { EXPECT(write(alarm_[1], "x", 1) == 1 || errno == EAGAIN); }
  void stop() {
    over_ = true;
    wake();
  }

  void run() {
    while (!over_) {
      for (const auto& one : desk_->serve({alarm_[0]}, channels_, 20)) by_hand(one);
      char bytes[64];
      while (read(alarm_[0], bytes, sizeof bytes) > 0) {
      }
      for (size_t w = 0; w < kWorkers; ++w) take_mail(w);
      if (draw_.one_in(3)) arm();
      if (draw_.one_in(60)) close(draw_.one_in(2) ? 0 : 1);
    }
    for (size_t w = 0; w < kWorkers; ++w) close(w);
  }

  int64_t rounds() const { return desk_->rounds(); }
  int boards() const { return boards_; }
  int64_t steps(size_t worker, size_t slice) const { return clocks_[worker][slice]; }
  float value(size_t slice, size_t at) const {
    return reinterpret_cast<const float*>(homes_[slice].get())[at];
  }

 private:
  static size_t area(size_t slice) { return 128 + kElements[slice] * sizeof(float); }

  // As Python does it: a step that is complete, and not foreseen.
  void by_hand(const ServerDesk::Ready& ready) {
    const Board& board = desk_->board(ready.board);
    add_to(homes_[ready.slice].get(), board.gradient(ready.slice, 0), ready.slice);
    const int64_t applied = board.slice(ready.slice).durable.load();
    desk_->publish(ready.board, ready.slice, applied + 1, true);
  }

  // What has come by message ends the board; whoever has none gets one.
  void take_mail(size_t worker) {
    Mail& mail = mail_[worker];
    std::vector<Clocks> found;
    {
      const std::lock_guard<std::mutex> lock(mail.mutex);
      found.swap(mail.sent);
    }
    if (found.empty()) return;
    close(worker);
    for (const Clocks& steps : found) {
      for (size_t s = 0; s < kSlices; ++s) {
        if (steps[s] != clocks_[worker][s]) continue;
        add_to(homes_[s].get(), reinterpret_cast<const char*>(gradient_of(worker, s).data()), s);
        ++clocks_[worker][s];
      }
    }
    open(worker);
  }

  void open(size_t worker) {
    disarm();
    std::vector<Home> homes;
    for (const Memory& home : homes_) homes.push_back({home.get(), staleness_});
    Mail& mail = mail_[worker];
    const std::lock_guard<std::mutex> lock(mail.mutex);
    mail.board = zeros(layout().total());
    std::memset(mail.board.get(), 0x5a, layout().total());  // it was something else before
    mail.clocks = clocks_[worker];
    const std::vector<int64_t> versions(mail.clocks.begin(), mail.clocks.end());
    mail.number = desk_->open(layout(), mail.board.get(), {worker}, versions, homes);
    numbers_[worker] = mail.number;
    ++boards_;
    ++mail.answered;
    mail.changed.notify_all();
    set_floor();
  }

  void close(size_t worker) {
    if (numbers_[worker] == 0) return;
    disarm();
    const Board& board = desk_->board(numbers_[worker]);
    for (size_t s = 0; s < kSlices; ++s) clocks_[worker][s] = board.slice(s).durable.load();
    desk_->close(numbers_[worker]);
    numbers_[worker] = 0;
    Mail& mail = mail_[worker];
    const std::lock_guard<std::mutex> lock(mail.mutex);
    mail.number = 0;
    set_floor();
  }

  void set_floor() {
    for (size_t s = 0; s < kSlices; ++s) {
      int64_t slowest = kUnbounded;
      for (size_t w = 0; w < kWorkers; ++w) {
        if (numbers_[w] == 0) slowest = std::min(slowest, clocks_[w][s]);
      }
      if (const int number = any()) desk_->set_floor(number, s, slowest);
    }
  }

  int any() const {
    const auto found = std::find_if(numbers_.begin(), numbers_.end(), [](int n) { return n; });
    return found == numbers_.end() ? 0 : *found;
  }

  void disarm() {
    for (size_t s = 0; s < kSlices && any(); ++s) desk_->disarm(any(), s);
  }

  void arm() {
    disarm();
    for (size_t s = 0; s < kSlices && any(); ++s) {
      if (draw_.one_in(4)) continue;
      Update update;
      update.sum = sums_[s].get();
      update.run = [this, s](int64_t) { add_to(homes_[s].get(), sums_[s].get(), s); };
      update.rounds = draw_.one_in(2) ? 5 : kUnbounded;
      LedgerPlace place;
      place.areas[0] = ledgers_[s].get();
      place.areas[1] = ledgers_[s].get() + area(s);
      place.value_at = 128;
      place.text = "some text";
      place.sequence = static_cast<uint64_t>(1 + desk_->rounds());
      desk_->arm(any(), s, DType::float32, draw_.one_in(2) ? &place : nullptr, update);
    }
  }

  std::array<Mail, kWorkers>& mail_;
  std::vector<int> channels_;
  const int64_t staleness_;
  Draw draw_;
  int alarm_[2];
  std::atomic<bool> over_{false};
  std::unique_ptr<ServerDesk> desk_;
  Memory desk_memory_;
  std::vector<Memory> homes_, sums_, ledgers_;
  std::array<Clocks, kWorkers> clocks_{};
  std::array<int, kWorkers> numbers_{};
  int boards_ = 0;
};

class Worker {
 public:
  Worker(Server& server, Mail& mail, size_t number, int channel, int64_t staleness,
         engine::Engine& engine)
      : server_(server), mail_(mail), number_(number), staleness_(staleness),
        draw_(static_cast<unsigned>(number) + 1), tag_(engine.new_tag()) {
    check(pipe2(notify_, O_NONBLOCK) == 0, "pipe");
    lane_ = WorkerLane::make(notify_[1], 200);
    desk_ = lane_->add_desk(server.desk_memory().get(), number, channel, server.desk_memory());
  }
  ~Worker() {
    for (int end : notify_) ::close(end);
  }

  void run(int64_t steps) {
    for (int64_t step = 0; step < steps; ++step) {
      if (draw_.one_in(400)) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      find_board();
      if (board_ && draw_.one_in(50)) recover();  // as by a program that does what boards can't
      if (!board_) {
        by_message();
      } else if (draw_.one_in(3)) {  // a step, and then a read of its own
        if (!exchange(true, false) || !exchange(false, true)) recover();
      } else if (!exchange(true, true)) {
        recover();
      }
    }
    while (board_ && !settled()) std::this_thread::sleep_for(std::chrono::microseconds(100));
    lane_->close();
  }
  int64_t by_boards() const { return lane_->steps(); }

 private:
  void find_board() {
    const std::lock_guard<std::mutex> lock(mail_.mutex);
    if (mail_.number == 0 || mail_.number == known_) return;
    EXPECT(!board_ && mail_.clocks == next_);
    known_ = mail_.number;
    board_ = lane_->open(desk_, layout(), mail_.board.get(), 0, true, mail_.board);
  }

  // False where it has failed.
  bool exchange(bool push, bool pull) {
    std::array<std::vector<float>, kSlices> from, to;
    std::promise<void> ended;
    auto made = std::make_shared<Exchange>();
    made->push = push;
    made->pull = pull;
    made->tags = {tag_};
    made->done = [&ended](std::exception_ptr) { ended.set_value(); };
    for (size_t s = 0; s < kSlices; ++s) {
      from[s] = gradient_of(number_, s);
      to[s].resize(kElements[s]);
      next_[s] += push;
      Piece piece;
      piece.board = board_;
      piece.slice = s;
      piece.from = reinterpret_cast<const char*>(from[s].data());
      piece.to = {reinterpret_cast<char*>(to[s].data())};
      made->pieces.push_back(std::move(piece));
    }
    auto end = ended.get_future();
    lane_->submit(made);
    while (end.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
      if (lane_->has_failed()) return false;
      lane_->help(tag_.get(), 2);
    }
    for (size_t s = 0; s < kSlices && pull; ++s) look_at(s, to[s]);
    return true;
  }

  void look_at(size_t slice, const std::vector<float>& values) {
    for (size_t i = 0; i < values.size(); ++i) {
      const auto worker = i % kWorkers;
      const auto steps = static_cast<int64_t>(values[i]);
      if (worker == number_) EXPECT(steps == next_[slice]);
      EXPECT(values[i] == values[worker]);  // never half of an update
      EXPECT(steps >= seen_[worker][slice]);
      if (staleness_ != kUnbounded) EXPECT(steps >= next_[slice] - staleness_);
    }
    for (size_t w = 0; w < kWorkers; ++w) {
      seen_[w][slice] = static_cast<int64_t>(values[w]);
    }
  }

  bool settled() {
    if (lane_->over(board_) || lane_->has_failed()) {
      recover();
      return true;
    }
    for (const auto& words : lane_->words(board_)) {
      if (words.durable < words.staged) return false;
    }
    return true;
  }

  // What lies on the board and is not durable goes by message, and what was not put there.
  void recover() {
    lane_->take_failed();
    Clocks steps;
    const auto words = lane_->retire(board_);
    board_ = nullptr;
    for (size_t s = 0; s < kSlices; ++s) {
      EXPECT(words[s].durable >= next_[s] - 1);
      steps[s] = words[s].durable < next_[s] ? next_[s] - 1 : -1;
    }
    send(steps);
  }

  void by_message() {
    Clocks steps;
    for (size_t s = 0; s < kSlices; ++s) steps[s] = next_[s]++;
    send(steps);
  }

  // Sends steps; waits until the server has them, and a new board is there.
  void send(const Clocks& steps) {
    std::unique_lock<std::mutex> lock(mail_.mutex);
    mail_.sent.push_back(steps);
    server_.wake();
    const auto there = [&, wanted = mail_.answered + 1] { return mail_.answered == wanted; };
    EXPECT(mail_.changed.wait_for(lock, std::chrono::seconds(300), there));
    EXPECT(mail_.clocks == next_);
  }

  Server& server_;
  Mail& mail_;
  const size_t number_;
  const int64_t staleness_;
  Draw draw_;
  engine::TagRef tag_;
  int notify_[2];
  std::shared_ptr<WorkerLane> lane_;
  std::shared_ptr<WorkerDesk> desk_;
  WorkerBoardRef board_;
  int known_ = 0;
  Clocks next_{};
  std::array<Clocks, kWorkers> seen_{};
};

void test_steps(int64_t staleness, int64_t steps) {
  auto engine = engine::make_threaded_engine();
  std::array<Mail, kWorkers> mail;
  std::vector<int> theirs, ours;
  for (size_t w = 0; w < kWorkers; ++w) {
    int ends[2];
    check(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends) == 0, "socketpair");
    theirs.push_back(ends[0]);
    ours.push_back(ends[1]);
  }
  Server server(mail, theirs, staleness);
  std::vector<std::unique_ptr<Worker>> workers;
  for (size_t w = 0; w < kWorkers; ++w) {
    workers.push_back(
        std::make_unique<Worker>(server, mail[w], w, ours[w], staleness, *engine));
  }
  std::thread serving([&] { server.run(); });
  std::vector<std::thread> threads;
  for (const auto& worker : workers) threads.emplace_back([&] { worker->run(steps); });
  for (std::thread& thread : threads) thread.join();
  server.stop();
  serving.join();
  for (size_t s = 0; s < kSlices; ++s) {
    for (size_t w = 0; w < kWorkers; ++w) {
      EXPECT(server.steps(w, s) == steps);
      EXPECT(server.value(s, w) == static_cast<float>(steps));
    }
  }
  if (steps >= 100) {
    EXPECT(server.rounds() > 0);
    for (const auto& worker : workers) EXPECT(worker->by_boards() > 0);
  }
  std::printf("%d boards, %ld steps closed natively, %ld of worker 0 by boards\n", server.boards(),
              static_cast<long>(server.rounds()), static_cast<long>(workers[0]->by_boards()));
  for (int end : theirs) ::close(end);
  for (int end : ours) ::close(end);
}

}  // namespace

int main(int argc, char** argv) {
  const long count = count_argument(argc, argv, 3000);
  test_steps(kUnbounded, count);
  test_steps(2, count);
  test_steps(0, count / 3);
  return result("kvstore_own_boards");
}
