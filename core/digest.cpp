#include "core/digest.h"

#include <xxhash.h>

#include <new>

#include <fmt/format.h>

#include "core/error.h"

namespace foresail {
namespace {

std::string hex_of(const XXH128_hash_t& hash) { return fmt::format("{:016x}{:016x}", hash.high64, hash.low64); }

}  // namespace

std::string digest_of(std::span<const std::byte> bytes) { return hex_of(XXH3_128bits(bytes.data(), bytes.size())); }

std::string digest_of(std::string_view text) { return hex_of(XXH3_128bits(text.data(), text.size())); }

struct Digest::State {
  XXH3_state_t* xxh = nullptr;

  State() : xxh(XXH3_createState()) {
    if (xxh == nullptr) throw std::bad_alloc();
    XXH3_128bits_reset(xxh);
  }
  ~State() { XXH3_freeState(xxh); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
};

Digest::Digest() : state_(std::make_unique<State>()) {}
Digest::~Digest() = default;
Digest::Digest(Digest&&) noexcept = default;
Digest& Digest::operator=(Digest&&) noexcept = default;

void Digest::update(std::span<const std::byte> bytes) {
  ensure(state_ != nullptr, "a moved-from Digest is not used");
  XXH3_128bits_update(state_->xxh, bytes.data(), bytes.size());
}

std::string Digest::hex() const {
  ensure(state_ != nullptr, "a moved-from Digest is not used");
  return hex_of(XXH3_128bits_digest(state_->xxh));
}

}  // namespace foresail
