// The number protocol of core.Array: from `a + b` to a push without Python code. The operators
// themselves are known only by the ids that set_operator_ids gives.
#include <array>
#include <string>
#include <unordered_map>

#include "bind/modules.h"

namespace mixflow::bind {
namespace {

struct Operation {
  int64_t id = -1;
  PyObject* params = nullptr;  // tuple, referenced for the life of the process
};

// One infix operator: array with array, array with number, number with array.
struct Infix {
  const char* name;
  bool commutes;
  Operation arrays;
  Operation scalar;
  Operation reflected;
};

enum InfixIndex { kAdd, kSub, kMul, kDiv, kMod, kPow, kEq, kNe, kLt, kLe, kGt, kGe, kInfixCount };

std::array<Infix, kInfixCount> infix{{{"add", true, {}, {}, {}},
                                      {"sub", false, {}, {}, {}},
                                      {"mul", true, {}, {}, {}},
                                      {"div", false, {}, {}, {}},
                                      {"mod", false, {}, {}, {}},
                                      {"pow", false, {}, {}, {}},
                                      {"eq", true, {}, {}, {}},
                                      {"ne", true, {}, {}, {}},
                                      {"lt", true, {}, {}, {}},
                                      {"le", true, {}, {}, {}},
                                      {"gt", true, {}, {}, {}},
                                      {"ge", true, {}, {}, {}}}};
Operation negative;
Operation absolute;

// Every key of set_operator_ids with its place.
const std::unordered_map<std::string, Operation*>& places() {
  static const auto* map = [] {
    auto* made = new std::unordered_map<std::string, Operation*>();  // NOLINT: leaked on purpose
    for (Infix& op : infix) {
      const std::string name = op.name;
      (*made)[name] = &op.arrays;
      (*made)[name + "_scalar"] = &op.scalar;
      if (!op.commutes) (*made)["r" + name + "_scalar"] = &op.reflected;
    }
    (*made)["neg"] = &negative;
    (*made)["abs"] = &absolute;
    return made;
  }();
  return *map;
}

void set_operator_ids(nb::dict ids) {
  for (auto [key, value] : ids) {
    const auto name = nb::cast<std::string>(key);
    auto place = places().find(name);
    if (place == places().end()) {
      std::string known;
      for (const auto& item : places()) known += " " + item.first;
      throw Error("[set_operator_ids] expected a known key, got '" + name + "'; known:" + known);
    }
    const bool pair = PyTuple_Check(value.ptr());
    const bool number = name.find("_scalar") != std::string::npos;
    nb::tuple params = pair     ? nb::cast<nb::tuple>(nb::object(value[1]))
                       : number ? nb::make_tuple(nb::none())
                                : nb::make_tuple();
    place->second->id = nb::cast<int64_t>(pair ? nb::object(value[0]) : nb::borrow(value));
    place->second->params = params.release().ptr();
  }
}

bool to_number(PyObject* object, double* number) {
  static PyTypeObject* generic = reinterpret_cast<PyTypeObject*>(
      nb::object(nb::module_::import_("numpy").attr("generic")).release().ptr());
  if (PyFloat_Check(object)) {
    *number = PyFloat_AS_DOUBLE(object);
    return true;
  }
  if (!PyLong_Check(object) && !PyObject_TypeCheck(object, generic)) return false;
  *number = PyFloat_AsDouble(object);
  if (*number == -1.0 && PyErr_Occurred()) throw nb::python_error();
  return true;
}

PyObject* not_implemented() { return nb::borrow(Py_NotImplemented).release().ptr(); }

PyObject* call(const Operation& op, PyObject* const* inputs, size_t count, const double* scalar,
               PyObject* out) {
  if (op.id < 0) return not_implemented();
  return invoke(op.id, inputs, count, op.params, scalar, scalar ? 1 : 0, out, nb::handle())
      .release()
      .ptr();
}

// C++ errors must not cross a C slot.
template <class Body>
PyObject* guarded(const Body& body) {
  try {
    return body();
  } catch (nb::python_error& error) {
    error.restore();
  } catch (const Error& error) {
    set_python_error(error);
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  } catch (const abi::__forced_unwind&) {
    park();  // see Entered
  }
  return nullptr;
}

PyObject* binary(InfixIndex which, PyObject* a, PyObject* b, PyObject* out) {
  return guarded([&]() -> PyObject* {
    const Entered scope;
    const Infix& op = infix[which];
    double number = 0;
    const bool left = is_array(a);
    if (left && is_array(b)) {
      PyObject* inputs[2] = {a, b};
      return call(op.arrays, inputs, 2, nullptr, out);
    }
    if (!to_number(left ? b : a, &number)) return not_implemented();
    const Operation& scalar = left || op.commutes ? op.scalar : op.reflected;
    return call(scalar, left ? &a : &b, 1, &number, out);
  });
}

template <InfixIndex which>
PyObject* slot(PyObject* a, PyObject* b) {
  return binary(which, a, b, nullptr);
}

template <InfixIndex which>
PyObject* inplace_slot(PyObject* a, PyObject* b) {
  return binary(which, a, b, a);
}

PyObject* power(PyObject* a, PyObject* b, PyObject* modulus) {
  return modulus == Py_None ? binary(kPow, a, b, nullptr) : not_implemented();
}

PyObject* inplace_power(PyObject* a, PyObject* b, PyObject* modulus) {
  return modulus == Py_None ? binary(kPow, a, b, a) : not_implemented();
}

PyObject* unary(const Operation& op, PyObject* a) {
  return guarded([&] {
    const Entered scope;
    check(op.id >= 0, "[array] expected the operator of this sign to be registered, got none");
    return call(op, &a, 1, nullptr, nullptr);
  });
}

PyObject* negate(PyObject* a) { return unary(negative, a); }
PyObject* magnitude(PyObject* a) { return unary(absolute, a); }

PyObject* compare(PyObject* a, PyObject* b, int op) {
  switch (op) {
    case Py_EQ:
      return binary(kEq, a, b, nullptr);
    case Py_NE:
      return binary(kNe, a, b, nullptr);
    case Py_LT:
      return binary(kLt, a, b, nullptr);
    case Py_LE:
      return binary(kLe, a, b, nullptr);
    case Py_GT:
      return binary(kGt, a, b, nullptr);
    default:
      return binary(kGe, a, b, nullptr);
  }
}

// By identity: a type with its own comparison would lose the hash of object.
Py_hash_t hash_identity(PyObject* self) {
  const auto address = reinterpret_cast<uintptr_t>(self) >> 4;
  return static_cast<Py_hash_t>(address);
}

template <class Function>
PyType_Slot entry(int id, Function function) {
  return {id, reinterpret_cast<void*>(function)};
}

}  // namespace

void append_number_slots(std::vector<PyType_Slot>* slots) {
  const PyType_Slot all[] = {entry(Py_nb_add, slot<kAdd>),
                             entry(Py_nb_subtract, slot<kSub>),
                             entry(Py_nb_multiply, slot<kMul>),
                             entry(Py_nb_true_divide, slot<kDiv>),
                             entry(Py_nb_remainder, slot<kMod>),
                             entry(Py_nb_power, power),
                             entry(Py_nb_inplace_add, inplace_slot<kAdd>),
                             entry(Py_nb_inplace_subtract, inplace_slot<kSub>),
                             entry(Py_nb_inplace_multiply, inplace_slot<kMul>),
                             entry(Py_nb_inplace_true_divide, inplace_slot<kDiv>),
                             entry(Py_nb_inplace_remainder, inplace_slot<kMod>),
                             entry(Py_nb_inplace_power, inplace_power),
                             entry(Py_nb_negative, negate),
                             entry(Py_nb_absolute, magnitude),
                             entry(Py_tp_richcompare, compare),
                             entry(Py_tp_hash, hash_identity)};
  slots->insert(slots->end(), std::begin(all), std::end(all));
}

void bind_number(nb::module_& m) {
  m.def("set_operator_ids", set_operator_ids, nb::arg("ids"));
  m.def("operator_keys", [] {
    nb::list keys;
    for (const auto& item : places()) keys.append(item.first);
    return keys;
  });
}

}  // namespace mixflow::bind
