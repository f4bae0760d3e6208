// Two functions of <algorithm>, which takes a compiler long to read: a first start waits for it.
#pragma once

namespace radish {

template <class T>
constexpr T min(T a, T b) {
  return b < a ? b : a;
}
template <class T>
constexpr T max(T a, T b) {
  return a < b ? b : a;
}

}  // namespace radish
