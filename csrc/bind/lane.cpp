// Boards of a KVStore as Python sees them: a server's desk, a worker's lane.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <tuple>

#include "bind/completion.h"
#include "bind/modules.h"
#include "bind/waits.h"
#include "kvstore/desk.h"
#include "kvstore/lane.h"
#include "plan/runner.h"

namespace mixflow::bind {
namespace {

using kvstore::ExchangeRef;
using kvstore::Layout;
using kvstore::ServerDesk;
using kvstore::WorkerBoardRef;
using kvstore::WorkerLane;

char* at(uintptr_t address) { return reinterpret_cast<char*>(address); }

// (board, slice, number of the array, first byte in it): one slice of an exchange.
using Stop = std::tuple<WorkerBoardRef, size_t, size_t, size_t>;

struct PyRoute {
  std::vector<Stop> stops;
};

// Where the bytes of an exchange are: one array per key, a list of targets per key.
struct Arrays {
  std::vector<plan::Array> from;
  std::vector<std::vector<plan::Array>> to;
};

Arrays arrays_of(nb::list gradients, nb::list targets) {
  Arrays made;
  for (nb::handle array : gradients) made.from.push_back(as_array(array).array);
  for (nb::handle some : targets) {
    made.to.emplace_back();
    for (nb::handle array : some) made.to.back().push_back(as_array(array).array);
  }
  return made;
}

// Starts an exchange, whose `done` keeps the arrays.
void submit(WorkerLane& lane, const ExchangeRef& exchange, const std::vector<Stop>& stops,
            const Arrays& arrays) {
  for (const auto& [board, slice, array, begin] : stops) {
    kvstore::Piece piece;
    piece.board = board;
    piece.slice = slice;
    if (exchange->push) piece.from = static_cast<const char*>(arrays.from[array].data()) + begin;
    for (const plan::Array& target : arrays.to[array]) {
      piece.to.push_back(static_cast<char*>(target.data()) + begin);
    }
    exchange->pieces.push_back(std::move(piece));
  }
  lane.submit(exchange);
}

// An exchange as an engine task. It ends when the lane says so, or whoever took it after it failed.
class ExchangeTask final : public engine::Task {
 public:
  ExchangeTask(std::shared_ptr<WorkerLane> lane, ExchangeRef exchange, std::vector<Stop> stops,
               Arrays arrays, std::string name)
      : lane_(std::move(lane)),
        exchange_(std::move(exchange)),
        stops_(std::move(stops)),
        arrays_(std::move(arrays)),
        name_(std::move(name)) {
    this->Task::lane = engine::Lane{engine::LaneKind::io, 0};
  }

  void run(engine::TaskContext& context) override {
    auto completion = context.defer();
    // The arrays live as long as the task is not ended, which the exchange outlives.
    exchange_->done = [completion, arrays = arrays_](std::exception_ptr error) {
      completion->done(std::move(error));
    };
    submit(*lane_, exchange_, stops_, arrays_);
  }
  std::string describe() const override { return name_; }

 private:
  std::shared_ptr<WorkerLane> lane_;
  ExchangeRef exchange_;
  std::vector<Stop> stops_;
  Arrays arrays_;
  std::string name_;
};

void check_fits(const PyRoute& route, const Arrays& arrays) {
  const auto& [from, to] = arrays;
  check(from.empty() || from.size() == to.size(), "[lane] expected targets for each gradient");
  for (const auto& [board, slice, array, begin] : route.stops) {
    check(array < to.size(), "[lane] expected targets for each stop");
    std::vector<plan::Array> all = to[array];
    if (!from.empty()) all.push_back(from[array]);
    const size_t end = begin + board->board.layout.bytes(slice);
    for (const plan::Array& one : all) {
      check(end <= one.bytes(), "[lane] expected ", end, " bytes, got ", one.bytes());
    }
  }
}

ExchangeRef new_exchange(const Arrays& arrays, bool pull, nb::handle payload) {
  auto made = std::make_shared<kvstore::Exchange>();
  made->push = !arrays.from.empty();
  made->pull = pull;
  made->payload = hold(payload);
  return made;
}

// Pushes the gradients (one array per key, or none at all) and, with `pull`, fills the targets (a
// list per key).
void exchange(const std::shared_ptr<WorkerLane>& lane, const PyRoute& route, nb::list gradients,
              nb::list targets, nb::list tags, const std::string& name, int priority, bool pull,
              bool inline_ok, nb::object payload) {
  const Entered scope;
  Arrays arrays = arrays_of(gradients, targets);
  check_fits(route, arrays);
  ExchangeRef made = new_exchange(arrays, pull, payload);
  auto task = std::make_unique<ExchangeTask>(lane, made, route.stops, arrays, name);
  task->priority = priority;
  task->inline_ok = inline_ok;
  task->site = current_site();
  for (const plan::Array& array : arrays.from) task->reads.push_back(array.chunk->tag());
  for (const auto& some : arrays.to) {
    for (const plan::Array& array : some) {
      made->tags.push_back(array.chunk->tag());
      plan::declare_write(task.get(), array);
    }
  }
  for (nb::handle tag : tags) {
    made->tags.push_back(chunk_of(tag)->tag());
    task->writes.push_back(chunk_of(tag)->tag());
  }
  push_unlocked([&] { plan::engine().push(std::move(task)); });
}

// `exchange` inside of a task that has the arrays and tags, and ends with it.
void exchange_now(const std::shared_ptr<WorkerLane>& lane, const PyRoute& route,
                  nb::list gradients, nb::list targets, nb::list tags, bool pull,
                  nb::object payload, const PyCompletion& completion) {
  const Arrays arrays = arrays_of(gradients, targets);
  check_fits(route, arrays);
  const ExchangeRef made = new_exchange(arrays, pull, payload);
  for (nb::handle tag : tags) made->tags.push_back(chunk_of(tag)->tag());
  made->done = [ending = completion.ending, arrays](std::exception_ptr error) {
    ending->done(std::move(error));
  };
  Unlocked unlocked;
  submit(*lane, made, route.stops, arrays);
}

// An exchange that failed, for whoever ends it by other means.
struct PyFailed {
  ExchangeRef exchange;
  void done(const std::optional<std::string>& error) {
    Unlocked unlocked;
    exchange->done(error ? std::make_exception_ptr(Error(*error)) : nullptr);
  }
};

nb::list take_failed(WorkerLane& lane) {
  nb::list made;
  for (ExchangeRef& exchange : lane.take_failed()) made.append(nb::cast(PyFailed{exchange}));
  return made;
}

// (staged, durable, version) by slice.
nb::list words_of(WorkerLane& lane, const WorkerBoardRef& board, bool retire) {
  nb::list made;
  for (const auto& words : retire ? lane.retire(board) : lane.words(board)) {
    made.append(nb::make_tuple(words.staged, words.durable, words.version));
  }
  return made;
}

// (bytes in all, places of the values, places of the gradients by slice and column).
nb::tuple layout(const std::vector<size_t>& sizes, size_t columns) {
  const Layout made(sizes, columns);
  nb::list values;
  nb::list gradients;
  for (size_t s = 0; s < made.slices(); ++s) {
    values.append(made.value_at(s));
    nb::list places;
    for (size_t c = 0; c < columns; ++c) places.append(made.gradient_at(s, c));
    gradients.append(places);
  }
  return nb::make_tuple(made.total(), values, gradients);
}

// (areas' addresses, which counts, its sequence, where the value begins, text).
using PyLedger = std::tuple<uintptr_t, uintptr_t, int, uint64_t, size_t, nb::bytes>;

// (address of the value, steps that a worker may be ahead; none: any number).
using PyHome = std::tuple<uintptr_t, std::optional<int64_t>>;

// (bound plan, array of the sum, numbers by round (those of the last one stay, if `rounds` is none),
// (address, bytes) of the states in the ledger's order, address of the count, rounds that it is
// for, what has the states).
using PyUpdate = std::tuple<nb::object, nb::object, std::vector<std::vector<double>>,
                            std::vector<std::pair<uintptr_t, size_t>>, uintptr_t,
                            std::optional<int64_t>, nb::object>;

// One run of a plan, and waits for it. Runs without the GIL.
void run_and_wait(const plan::BindingRef& binding, const std::vector<double>& numbers) {
  plan::RunOptions options;
  options.scalars = numbers.data();
  options.num_scalars = numbers.size();
  options.user = binding.get();
  plan::push_run(binding, options);
  for (const plan::Array& arg : binding->args()) {
    const engine::TagRef& tag = arg.chunk->tag();
    if (!plan::engine().idle(tag)) plan::engine().wait_for_write(tag);
  }
}

kvstore::Update update_of(const PyUpdate& given) {
  const auto& [bound, sum, numbers, states, count, rounds, keep] = given;
  check(!numbers.empty(), "[lane] expected numbers of at least one round, got none");
  const plan::Array& array = as_array(sum).array;
  kvstore::Update made;
  made.sum = static_cast<char*>(array.data());
  made.run = [binding = nb::cast<PyBound&>(bound).binding, array, numbers = numbers,
              held = hold(keep)](int64_t round) {
    const size_t at = std::min(static_cast<size_t>(round), numbers.size() - 1);
    run_and_wait(binding, numbers[at]);
  };
  for (const auto& [address, bytes] : states) made.states.emplace_back(at(address), bytes);
  made.count = reinterpret_cast<int64_t*>(at(count));
  if (rounds) made.rounds = *rounds;
  return made;
}

void arm(ServerDesk& desk, int board, size_t slice, int dtype,
         const std::optional<PyLedger>& ledger, const std::optional<PyUpdate>& update) {
  kvstore::Update given;
  if (update) given = update_of(*update);
  if (!ledger) {
    return desk.arm(board, slice, static_cast<DType>(dtype), nullptr, std::move(given));
  }
  const auto& [first, second, current, sequence, value_at, text] = *ledger;
  kvstore::LedgerPlace place;
  place.areas[0] = at(first);
  place.areas[1] = at(second);
  place.current = current;
  place.sequence = sequence;
  place.value_at = value_at;
  place.text = std::string(text.c_str(), text.size());
  desk.arm(board, slice, static_cast<DType>(dtype), &place, std::move(given));
}

std::vector<std::pair<int, size_t>> serve(ServerDesk& desk, const std::vector<int>& others,
                                          const std::vector<int>& channels, int64_t ms) {
  std::vector<ServerDesk::Ready> found;
  {
    Unlocked unlocked;
    found = desk.serve(others, channels, ms);
  }
  std::vector<std::pair<int, size_t>> made;
  for (const auto& ready : found) made.emplace_back(ready.board, ready.slice);
  return made;
}

// (version, durable) of a slice.
std::pair<int64_t, int64_t> words(ServerDesk& desk, int board, size_t slice) {
  const kvstore::Slice& found = desk.board(board).slice(slice);
  return {found.version.load(), found.durable.load()};
}

void bind_worker(nb::module_& m) {
  nb::class_<kvstore::WorkerBoard>(m, "WorkerBoard");
  nb::class_<kvstore::WorkerDesk>(m, "WorkerDesk");
  nb::class_<PyRoute>(m, "LaneRoute").def("__init__", [](PyRoute* self, std::vector<Stop> stops) {
    new (self) PyRoute{std::move(stops)};
  });
  nb::class_<PyFailed>(m, "FailedExchange")
      .def_prop_ro("staged", [](PyFailed& f) { return f.exchange->staged; })
      .def_prop_ro("payload",
                   [](PyFailed& f) {
                     return nb::borrow(static_cast<PyObject*>(f.exchange->payload.get()));
                   })
      .def("done", &PyFailed::done, nb::arg("error") = nb::none());
  nb::class_<WorkerLane>(m, "WorkerLane")
      .def(nb::new_([](int notify, int64_t patience) { return WorkerLane::make(notify, patience); }),
           nb::arg("notify"), nb::arg("patience_ms"))
      .def("add_desk",
           [](WorkerLane& lane, uintptr_t address, size_t number, int channel, nb::object keep) {
             return lane.add_desk(at(address), number, channel, hold(keep));
           })
      .def("drop_desk", &WorkerLane::drop_desk)
      .def("open",
           [](WorkerLane& lane, std::shared_ptr<kvstore::WorkerDesk> desk,
              const std::vector<size_t>& sizes, size_t columns, uintptr_t address, size_t column,
              bool own, nb::object keep) {
             return lane.open(std::move(desk), Layout(sizes, columns), at(address), column, own,
                              hold(keep));
           })
      .def("exchange", exchange)
      .def("exchange_now", exchange_now)
      .def("retire",
           [](WorkerLane& lane, const WorkerBoardRef& board) {
             return words_of(lane, board, true);
           })
      .def("words",
           [](WorkerLane& lane, const WorkerBoardRef& board) {
             return words_of(lane, board, false);
           })
      .def("over", &WorkerLane::over)
      .def("take_failed", take_failed)
      .def_prop_ro("has_failed", &WorkerLane::has_failed)
      .def_prop_ro("steps", &WorkerLane::steps)
      .def_prop_ro("bytes", &WorkerLane::bytes)
      .def("close", [](WorkerLane& lane) {
        Unlocked unlocked;
        lane.close();
      });
}

}  // namespace

void bind_lane(nb::module_& m) {
  m.def("lane_layout", layout, nb::arg("sizes"), nb::arg("columns"));
  nb::class_<ServerDesk>(m, "ServerDesk")
      .def("__init__", [](ServerDesk* self, uintptr_t address,
                          size_t bells) { new (self) ServerDesk(at(address), bells); })
      .def("open",
           [](ServerDesk& desk, const std::vector<size_t>& sizes, uintptr_t address,
              std::vector<size_t> columns, const std::vector<int64_t>& versions,
              const std::vector<PyHome>& given) {
             const size_t count = columns.size();
             std::vector<kvstore::Home> homes;
             for (const auto& [value, staleness] : given) {
               homes.push_back({at(value), staleness.value_or(kvstore::kUnbounded)});
             }
             return desk.open(Layout(sizes, count), at(address), std::move(columns), versions,
                              homes);
           },
           nb::arg("sizes"), nb::arg("address"), nb::arg("columns"), nb::arg("versions"),
           nb::arg("homes") = std::vector<PyHome>())
      .def("close", &ServerDesk::close)
      .def("arm", arm, nb::arg("board"), nb::arg("slice"), nb::arg("dtype"),
           nb::arg("ledger") = nb::none(), nb::arg("update") = nb::none())
      .def("disarm", &ServerDesk::disarm)
      .def("publish", &ServerDesk::publish)
      .def("set_floor", &ServerDesk::set_floor)
      .def("ring", &ServerDesk::ring_all)
      .def("serve", serve)
      .def("words", words)
      .def_prop_ro("rounds", &ServerDesk::rounds)
      .def_prop_ro("bytes", &ServerDesk::bytes);
  bind_worker(m);
}

}  // namespace mixflow::bind
