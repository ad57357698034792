#include "runtime/metrics/tensorboard.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <chrono>

#include "core/file.h"

namespace foresail {
namespace {

constexpr std::array<uint32_t, 256> make_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1) != 0 ? 0x82F63B78 : 0);
    table[i] = crc;
  }
  return table;
}

template <typename T>
void put(std::string& to, T value) {
  to.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void put_varint(std::string& to, uint64_t value) {
  for (; value >= 128; value >>= 7) to += static_cast<char>(value | 128);
  to += static_cast<char>(value);
}

// Protobuf fields: key = number << 3 | wire type (0 varint, 1 eight bytes, 2 length-prefixed, 5 four bytes).
void put_double(std::string& to, uint32_t field, double value) { put_varint(to, field << 3 | 1), put(to, value); }
void put_float(std::string& to, uint32_t field, float value) { put_varint(to, field << 3 | 5), put(to, value); }
void put_int(std::string& to, uint32_t field, int64_t value) {
  put_varint(to, field << 3 | 0);
  put_varint(to, static_cast<uint64_t>(value));
}
void put_bytes(std::string& to, uint32_t field, std::string_view value) {
  put_varint(to, field << 3 | 2);
  put_varint(to, value.size());
  to += value;
}

double unix_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// The format's readers expect the checksum rotated and offset, so that it may cover data that holds checksums itself.
uint32_t masked(uint32_t crc) { return std::rotr(crc, 15) + 0xa282ead8; }

std::filesystem::path file_in(const std::filesystem::path& folder) {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host = {'h', 'o', 's', 't'};
  return folder / fmt::format("events.out.tfevents.{:010d}.{}.{}.0", static_cast<int64_t>(unix_seconds()), host.data(),
                              ::getpid());
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  static constexpr std::array<uint32_t, 256> kTable = make_table();
  uint32_t crc = 0xFFFFFFFF;
  for (const char c : bytes) crc = crc >> 8 ^ kTable[(crc ^ static_cast<unsigned char>(c)) & 255];
  return ~crc;
}

TensorBoardWriter::TensorBoardWriter(const std::filesystem::path& folder) {
  create_folder(folder);
  file_ = PosixFile::open_to_append(file_in(folder));
  std::string event;
  put_double(event, 1, unix_seconds());
  put_bytes(event, 3, "brain.Event:2");
  write_record(event);
}

void TensorBoardWriter::append(int64_t step, std::span<const std::pair<std::string, double>> scalars) {
  std::string summary;
  for (const auto& [tag, value] : scalars) {
    std::string entry;
    put_bytes(entry, 1, tag);
    put_float(entry, 2, static_cast<float>(value));
    put_bytes(summary, 1, entry);
  }
  std::string event;
  put_double(event, 1, unix_seconds());
  put_int(event, 2, step);
  put_bytes(event, 5, summary);
  write_record(event);
}

void TensorBoardWriter::write_record(const std::string& payload) {
  std::string record;
  put(record, static_cast<uint64_t>(payload.size()));
  put(record, masked(crc32c(record)));
  record += payload;
  put(record, masked(crc32c(payload)));
  file_.append(record);
}

}  // namespace foresail
