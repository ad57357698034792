// Content digests (XXH3, 128 bits) for plans, Programs, checkpoints and datasets. Not for security.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace foresail {

/// 32 hexadecimal digits.
std::string digest_of(std::span<const std::byte> bytes);
std::string digest_of(std::string_view text);

/// Incremental digest of a stream of bytes.
class Digest {
 public:
  Digest();
  ~Digest();
  Digest(Digest&&) noexcept;
  Digest& operator=(Digest&&) noexcept;
  void update(std::span<const std::byte> bytes);
  std::string hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace foresail
