// The one error type of the core, and the check that throws it.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

namespace mixflow {

// Every failure that a user can cause becomes an Error; bind/ turns it into MXNetError.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

template <class... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

// Throws Error with the joined parts when the condition does not hold.
template <class... Parts>
void check(bool condition, const Parts&... parts) {
  if (!condition) throw Error(concat(parts...));
}

}  // namespace mixflow
