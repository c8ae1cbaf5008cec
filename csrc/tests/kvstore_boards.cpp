// Boards under stress: a server's desk and the lanes of its workers as threads of one process, so
// that the thread sanitizer sees both sides of every word and of every byte.
//
// `Post` stands in for messages: it takes what boards do not, and whatever comes by it ends the
// board that is open, as in `mixflow/kvstore/server/lanes.py`. Boards are closed at random, servers begin
// anew, workers lose their patience; every value that is read is the sum of its round, and no round
// is lost.
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <future>
#include <map>
#include <random>
#include <set>
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
struct Plan {
  std::vector<size_t> sizes;  // bytes of each slice
  // Slices that go together, and every how many steps.
  std::vector<std::pair<std::vector<size_t>, int64_t>> groups;
  int64_t patience_ms = 30;
};
// Small ones, and one that is committed later.
const Plan kMany = {{16, 4000, 20000, 300 << 10}, {{{0, 1}, 1}, {{2}, 1}, {{3}, 40}}, 30};
// Summed on two threads; past the caches. A sanitizer makes their copies slow.
const Plan kLarge = {{2560 << 10}, {{{0}, 1}}, 1000};
const Plan kHuge = {{(16 << 20) + 20}, {{{0}, 1}}, 10000};
Plan plan;  // that of the test, set before its threads begin

using Memory = std::shared_ptr<char>;
using Steps = std::vector<int64_t>;

Memory zeros(size_t bytes) {
  const size_t whole = (bytes + kPage - 1) / kPage * kPage;
  char* made = static_cast<char*>(std::aligned_alloc(kPage, whole));
  std::memset(made, 0, whole);
  return Memory(made, std::free);
}

float part_of(size_t worker, size_t slice, int64_t step) {
  return static_cast<float>(step % 1000 * 8 + static_cast<int64_t>(worker + slice));
}

// The value of a slice at a version.
float value_of(size_t slice, int64_t version) {
  float sum = 0;
  for (size_t w = 0; w < kWorkers && version > 0; ++w) sum += part_of(w, slice, version - 1);
  return sum;
}

bool all_are(const char* memory, size_t slice, float wanted) {
  const float* values = reinterpret_cast<const float*>(memory);
  for (size_t i = 0; i < plan.sizes[slice] / sizeof(float); ++i) {
    if (values[i] != wanted) return false;
  }
  return true;
}

class Draw {
 public:
  explicit Draw(unsigned seed) : draw_(seed) {}
  bool one_in(unsigned count) { return draw_() % count == 0; }

 private:
  std::minstd_rand draw_;
};

struct Part {
  size_t worker, slice;
  int64_t step;  // -1: only wants to be told the versions
};

struct Offer {
  int number = 0;  // 0: no board is open
  Memory desk, board;
  Steps versions;
};

struct Post {
  std::mutex mutex;
  std::condition_variable changed;
  Offer offer;
  std::vector<Part> inbox;
  Steps versions = Steps(plan.sizes.size());
  bool over = false;
  int alarm[2];

  Post() { check(pipe2(alarm, O_NONBLOCK) == 0, "pipe"); }
  void wake() { EXPECT(write(alarm[1], "x", 1) == 1 || errno == EAGAIN); }
  void send(const std::vector<Part>& parts) {
    {
      const std::lock_guard<std::mutex> lock(mutex);
      inbox.insert(inbox.end(), parts.begin(), parts.end());
    }
    wake();
  }
  void wait_for(size_t slice, int64_t version) {
    std::unique_lock<std::mutex> lock(mutex);
    const auto there = [&] { return versions[slice] >= version; };
    EXPECT(changed.wait_for(lock, std::chrono::seconds(300), there));
  }
};

class Server {
 public:
  Server(Post& post, std::vector<int> channels)
      : post_(post), channels_(std::move(channels)), draw_(7) {
    for (size_t size : plan.sizes) ledgers_.push_back(zeros(2 * (kHead + size)));
    restart();
  }

  void run() {
    while (true) {
      const auto ready = desk_->serve({post_.alarm[0]}, channels_, 20);
      for (const auto& one : ready) close_by_hand(one.slice);
      if (!ready.empty()) desk_->ring_all();
      if (!take_messages()) break;
      if (open_ && draw_.one_in(3)) arm();
      if (open_ && draw_.one_in(40)) take({});
    }
    if (open_) close();
  }
  const Steps& versions() const { return versions_; }
  int boards() const { return offers_; }
  int64_t rounds() const { return rounds_ + desk_->rounds(); }

 private:
  static constexpr size_t kHead = 64;

  void restart() {
    if (desk_) rounds_ += desk_->rounds();
    desk_memory_ = zeros(kLine * (1 + kWorkers));
    desk_ = std::make_unique<ServerDesk>(desk_memory_.get(), kWorkers);
  }

  // As Python does it where more than a sum is wanted: the value, and its commit before or after.
  void close_by_hand(size_t slice) {
    const Board& board = desk_->board(number_);
    float* value = reinterpret_cast<float*>(board.value(slice));
    for (size_t i = 0; i < plan.sizes[slice] / sizeof(float); ++i) {
      value[i] = 0;
      for (size_t w = 0; w < kWorkers; ++w) {
        value[i] += reinterpret_cast<const float*>(board.gradient(slice, w))[i];
      }
    }
    const int64_t version = board.slice(slice).version.load() + 1;
    if (draw_.one_in(2)) desk_->publish(number_, slice, version, false);
    desk_->publish(number_, slice, version, true);
  }

  bool take_messages() {
    std::vector<Part> found;
    char bytes[64];
    while (read(post_.alarm[0], bytes, sizeof bytes) > 0) {
    }
    {
      const std::lock_guard<std::mutex> lock(post_.mutex);
      if (post_.over && post_.inbox.empty()) return false;
      found.swap(post_.inbox);
    }
    if (!found.empty() || !open_) take(found);
    return true;
  }

  // What comes by message ends the board; the next one is there before anybody is answered.
  void take(const std::vector<Part>& parts) {
    if (open_) close();
    for (const Part& part : parts) {
      if (part.step >= versions_[part.slice]) {
        EXPECT((pending_[{part.slice, part.step}].insert(part.worker).second));
      }
    }
    for (size_t s = 0; s < plan.sizes.size(); ++s) {
      auto found = pending_.find({s, versions_[s]});
      for (; found != pending_.end() && found->second.size() == kWorkers;
           found = pending_.find({s, versions_[s]})) {
        pending_.erase(found);
        ++versions_[s];
      }
    }
    const std::lock_guard<std::mutex> lock(post_.mutex);
    post_.offer = Offer();
    if (pending_.empty() && post_.inbox.empty()) open();
    post_.versions = versions_;
    post_.changed.notify_all();
  }

  void open() {
    if (draw_.one_in(4)) restart();
    Layout layout(plan.sizes, kWorkers);
    board_memory_ = zeros(layout.total());
    for (size_t s = 0; s < plan.sizes.size(); ++s) {
      float* value = reinterpret_cast<float*>(board_memory_.get() + layout.value_at(s));
      std::fill(value, value + plan.sizes[s] / sizeof(float), value_of(s, versions_[s]));
    }
    std::vector<size_t> columns;
    for (size_t w = 0; w < kWorkers; ++w) columns.push_back(w);
    number_ = desk_->open(std::move(layout), board_memory_.get(), columns, versions_);
    post_.offer = Offer{++offers_, desk_memory_, board_memory_, versions_};
    open_ = true;
    arm();
  }

  void arm() {
    for (size_t s = 0; s < plan.sizes.size(); ++s) {
      if (draw_.one_in(4)) {
        desk_->disarm(number_, s);
        continue;
      }
      const LedgerPlace place = ledger(s);
      desk_->arm(number_, s, DType::float32, draw_.one_in(2) ? &place : nullptr, {});
    }
  }

  LedgerPlace ledger(size_t slice) {
    LedgerPlace place;
    uint64_t sequences[2];
    for (size_t a = 0; a < 2; ++a) {
      place.areas[a] = ledgers_[slice].get() + a * (kHead + plan.sizes[slice]);
      std::memcpy(&sequences[a], place.areas[a], 8);
    }
    place.current = sequences[1] > sequences[0];
    place.sequence = sequences[place.current];
    place.value_at = kHead;
    place.text = "some text";
    return place;
  }

  void close() {
    for (size_t s = 0; s < plan.sizes.size(); ++s) {
      const Board& board = desk_->board(number_);
      versions_[s] = board.slice(s).version.load();
      EXPECT(board.slice(s).durable.load() == versions_[s]);
      EXPECT(all_are(board.value(s), s, value_of(s, versions_[s])));
    }
    desk_->close(number_);
    open_ = false;
  }

  Post& post_;
  std::vector<int> channels_;
  Draw draw_;
  std::unique_ptr<ServerDesk> desk_;
  Memory desk_memory_, board_memory_;
  std::vector<Memory> ledgers_;
  Steps versions_ = Steps(plan.sizes.size());
  std::map<std::pair<size_t, int64_t>, std::set<size_t>> pending_;
  int number_ = 0, offers_ = 0;
  int64_t rounds_ = 0;
  bool open_ = false;
};

// One group of slices in one step.
struct Under {
  const std::vector<size_t>* slices = nullptr;
  std::map<size_t, int64_t> steps;
  std::map<size_t, std::vector<float>> from, to;
  engine::TagRef tag;
  ExchangeRef exchange;  // none: it goes by messages
  bool pull = true, failed = false;
  std::promise<void> ended;
  std::future<void> end = ended.get_future();
};

class Worker {
 public:
  Worker(Post& post, size_t number, int channel, engine::Engine& engine)
      : post_(post), number_(number), channel_(channel), draw_(static_cast<unsigned>(number) + 1) {
    check(pipe2(notify_, O_NONBLOCK) == 0, "pipe");
    lane_ = WorkerLane::make(notify_[1], plan.patience_ms);
    for (size_t g = 0; g < plan.groups.size(); ++g) tags_.push_back(engine.new_tag());
  }
  ~Worker() {
    for (int end : notify_) ::close(end);
  }

  void run(int64_t steps) {
    std::atomic<bool> over{false};
    std::thread watcher([&] {
      while (!over) watch();
    });
    for (int64_t step = 0; step < steps; ++step) {
      if (draw_.one_in(300)) std::this_thread::sleep_for(std::chrono::milliseconds(40));
      follow();
      std::vector<std::unique_ptr<Under>> all;
      for (size_t g = 0; g < plan.groups.size(); ++g) {
        if (step % plan.groups[g].second == 0) all.push_back(begin(g));
      }
      for (const auto& one : all) finish(*one);
    }
    leave();
    over = true;
    watcher.join();
    lane_->close();
  }
  int64_t by_boards() const { return lane_->steps(); }

 private:
  // What the link's thread of a real worker asks beside the others.
  void watch() {
    WorkerBoardRef board;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      board = board_;
    }
    if (board) {
      EXPECT(lane_->words(board).size() == plan.sizes.size());
      lane_->over(board);
    }
    lane_->has_failed();
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }

  void set_board(WorkerBoardRef board) {
    const std::lock_guard<std::mutex> lock(mutex_);
    board_ = std::move(board);
  }

  void follow() {
    Offer offer;
    {
      const std::lock_guard<std::mutex> lock(post_.mutex);
      if (post_.offer.number == known_) return;
      offer = post_.offer;
    }
    known_ = offer.number;
    leave();
    if (known_ == 0 || offer.versions != next_) return;
    if (offer.desk != desk_memory_) {
      if (desk_) lane_->drop_desk(desk_);
      desk_ = lane_->add_desk(offer.desk.get(), number_, channel_, offer.desk);
      desk_memory_ = offer.desk;
    }
    set_board(
        lane_->open(desk_, Layout(plan.sizes, kWorkers), offer.board.get(), number_, false,
                    offer.board));
  }

  std::unique_ptr<Under> begin(size_t group) {
    auto made = std::make_unique<Under>();
    made->slices = &plan.groups[group].first;
    made->tag = tags_[group];
    made->pull = !draw_.one_in(10);
    for (size_t s : *made->slices) {
      made->steps[s] = next_[s]++;
      made->from[s].assign(plan.sizes[s] / sizeof(float), part_of(number_, s, made->steps[s]));
      made->to[s].assign(plan.sizes[s] / sizeof(float), -1.0f);
    }
    if (board_ && !lane_->over(board_)) {
      submit(*made);
    } else {
      leave();
      send(*made);
    }
    return made;
  }

  void submit(Under& under) {
    under.exchange = std::make_shared<Exchange>();
    under.exchange->pull = under.pull;
    under.exchange->tags = {under.tag};
    under.exchange->payload = std::shared_ptr<void>(&under, [](void*) {});
    under.exchange->done = [&under](std::exception_ptr) { under.ended.set_value(); };
    for (size_t s : *under.slices) {
      Piece piece;
      piece.board = board_;
      piece.slice = s;
      piece.from = reinterpret_cast<const char*>(under.from[s].data());
      piece.to = {reinterpret_cast<char*>(under.to[s].data())};
      under.exchange->pieces.push_back(std::move(piece));
    }
    lane_->submit(under.exchange);
  }

  void send(const Under& under) {
    std::vector<Part> parts;
    for (const auto& [slice, step] : under.steps) parts.push_back({number_, slice, step});
    post_.send(parts);
  }

  // What lies on a board and is not durable goes by messages.
  void leave() {
    if (!board_) return;
    std::vector<Part> parts;
    const auto words = lane_->retire(board_);
    for (size_t s = 0; s < plan.sizes.size(); ++s) {
      if (words[s].staged > words[s].durable) parts.push_back({number_, s, words[s].staged - 1});
    }
    set_board(nullptr);
    if (!parts.empty()) post_.send(parts);
  }

  void recover() {
    leave();
    for (const ExchangeRef& exchange : lane_->take_failed()) {
      Under& under = *static_cast<Under*>(exchange->payload.get());
      under.failed = true;
      if (!exchange->staged) send(under);
    }
  }

  void finish(Under& under) {
    while (under.exchange && !under.failed) {
      if (draw_.one_in(2)) {
        help_with(under.tag, 2);
      } else if (draw_.one_in(2)) {
        lane_->help(under.tag.get(), 1);
      }
      if (under.end.wait_for(std::chrono::microseconds(500)) == std::future_status::ready) break;
      if (lane_->has_failed() || (board_ && lane_->over(board_))) recover();
    }
    if (!under.exchange || under.failed) finish_by_messages(under);
    if (!under.pull) return;
    for (const auto& [slice, step] : under.steps) {
      const char* found = reinterpret_cast<const char*>(under.to[slice].data());
      EXPECT(all_are(found, slice, value_of(slice, step + 1)));
    }
  }

  void finish_by_messages(Under& under) {
    if (under.pull) post_.send({{number_, 0, -1}});
    for (const auto& [slice, step] : under.steps) {
      if (under.pull) post_.wait_for(slice, step + 1);
      std::fill(under.to[slice].begin(), under.to[slice].end(), value_of(slice, step + 1));
    }
    if (under.exchange) under.exchange->done(nullptr);
  }

  Post& post_;
  const size_t number_;
  const int channel_;
  Draw draw_;
  int notify_[2];
  std::shared_ptr<WorkerLane> lane_;
  std::vector<engine::TagRef> tags_;
  std::shared_ptr<WorkerDesk> desk_;
  Memory desk_memory_;
  std::mutex mutex_;  // of `board_`, which the watcher reads
  WorkerBoardRef board_;
  Steps next_ = Steps(plan.sizes.size());
  int known_ = 0;
};

void test_rounds(const Plan& tested, int64_t steps) {
  plan = tested;
  auto engine = engine::make_threaded_engine();
  Post post;
  std::vector<int> theirs, ours;
  for (size_t w = 0; w < kWorkers; ++w) {
    int ends[2];
    check(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends) == 0, "socketpair");
    theirs.push_back(ends[0]);
    ours.push_back(ends[1]);
  }
  Server server(post, theirs);
  std::vector<std::unique_ptr<Worker>> workers;
  for (size_t w = 0; w < kWorkers; ++w) {
    workers.push_back(std::make_unique<Worker>(post, w, ours[w], *engine));
  }
  std::thread serving([&] { server.run(); });
  std::vector<std::thread> threads;
  for (const auto& worker : workers) threads.emplace_back([&] { worker->run(steps); });
  for (std::thread& thread : threads) thread.join();
  {
    const std::lock_guard<std::mutex> lock(post.mutex);
    post.over = true;
  }
  post.wake();
  serving.join();
  for (size_t g = 0; g < plan.groups.size(); ++g) {
    const int64_t wanted = (steps + plan.groups[g].second - 1) / plan.groups[g].second;
    for (size_t s : plan.groups[g].first) EXPECT(server.versions()[s] == wanted);
  }
  // Boards end by chance: a few hundred steps may all go by the first one, or, where a sanitizer is
  // slow, a few by none.
  if (steps >= 1000) EXPECT(server.boards() > 1);
  if (steps >= 100) {
    EXPECT(server.rounds() > 0);
    for (const auto& worker : workers) EXPECT(worker->by_boards() > 0);
  }
  std::printf("%d boards, %ld rounds closed natively, %ld steps of worker 0 by boards\n",
              server.boards(), static_cast<long>(server.rounds()),
              static_cast<long>(workers[0]->by_boards()));
  for (int end : theirs) ::close(end);
  for (int end : ours) ::close(end);
}

// A lane that is closed while a thread helps, and while another one gives it a desk.
void test_close(int64_t times) {
  auto engine = engine::make_threaded_engine();
  for (int64_t i = 0; i < times; ++i) {
    const Memory desk = zeros(kLine * 3), other = zeros(kLine * 3);
    const Memory memory = zeros(Layout({16}, 2).total());
    ServerDesk server(desk.get(), 2);
    server.open(Layout({16}, 2), memory.get(), {0, 1}, {0});
    const auto lane = WorkerLane::make(-1, 60000);
    const auto seen = lane->add_desk(desk.get(), 0, -1, desk);
    const auto exchange = std::make_shared<Exchange>();
    const engine::TagRef tag = engine->new_tag();
    float gradient[4] = {1, 2, 3, 4};
    exchange->tags = {tag};
    exchange->pieces.resize(1);
    exchange->pieces[0].board = lane->open(seen, Layout({16}, 2), memory.get(), 0, false, memory);
    exchange->pieces[0].from = reinterpret_cast<const char*>(gradient);
    lane->submit(exchange);
    std::thread helper([&] { lane->help(tag.get(), 3600000); });  // or it is woken
    std::thread adder([&] {
      const std::string error = error_of([&] { lane->add_desk(other.get(), 1, -1, other); });
      EXPECT(error.empty() || contains(error, "expected an open lane"));
    });
    if (i % 2) std::this_thread::sleep_for(std::chrono::microseconds(100 * (i % 7)));
    lane->close();
    helper.join();
    adder.join();
    const auto failed = lane->take_failed();
    EXPECT(failed.size() == 1 && failed[0] == exchange && exchange->staged);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const long count = count_argument(argc, argv, 5000);
  test_rounds(kMany, count);
  test_rounds(kLarge, std::min(count / 50, 200L));
  test_rounds(kHuge, std::min(count / 100, 20L));
  test_close(std::min(count / 20, 500L));
  return result("kvstore_boards");
}
