// mixflow._core: the compiled core. Its Python protocol is mixflow/_rt.py.
#include "bind/modules.h"

NB_MODULE(_core, m) {
  using namespace mixflow::bind;
  nanobind::set_leak_warnings(false);  // arrays of a live program outlive the interpreter
  m.attr("name") = "native";
  install_errors();
  install_sites();
  bind_array(m);
  bind_kernels(m);
  bind_plan(m);
  bind_dispatch(m);
  bind_number(m);
  bind_engine(m);
  bind_storage(m);
  bind_random(m);
  bind_picture(m);
  bind_lane(m);
  bind_exit(m);
}
