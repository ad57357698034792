// Damage to files, reproducible from a seed: what disks, transfers, editors and unlucky scripts do to them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace foresail {

enum class Content : uint8_t { bytes, json };

class Mutator {
 public:
  explicit Mutator(uint64_t seed) : state_(seed) {}
  /// One to four changes. JSON mostly stays JSON: values are exchanged for absurd ones, members removed or doubled.
  std::string mutate(std::string content, Content kind);

 private:
  uint64_t next();  ///< SplitMix64 (Steele, Lea & Flood, OOPSLA 2014)
  size_t below(size_t bound) { return bound == 0 ? 0 : static_cast<size_t>(next() % bound); }
  void change_bytes(std::string& content);
  void change_json(std::string& content);
  void replace_value(std::string& content);
  void change_member(std::string& content);

  uint64_t state_;
};

}  // namespace foresail
