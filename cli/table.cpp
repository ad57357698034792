#include "cli/table.h"

#include <algorithm>
#include <cctype>
#include <cstdint>

#include "core/error.h"

namespace foresail {
namespace {

/// Characters, not bytes: continuation bytes of UTF-8 take no column.
size_t width_of(const std::string& text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](unsigned char c) { return (c & 0xC0) != 0x80; }));
}

bool starts_as_number(const std::string& cell) {
  if (cell.empty() || cell == "-") return true;
  const size_t first = cell[0] == '-' || cell[0] == '+' ? 1 : 0;
  return first < cell.size() && std::isdigit(static_cast<unsigned char>(cell[first])) != 0;
}

}  // namespace

void Table::add(std::vector<std::string> row) {
  ensure(row.size() <= header_.size(), "a row of a table has at most one cell per column");
  row.resize(header_.size());
  rows_.push_back(std::move(row));
}

std::string Table::text() const {
  std::vector<size_t> widths;
  std::vector<bool> right;
  for (size_t column = 0; column < header_.size(); ++column) {
    size_t width = width_of(header_[column]);
    bool numbers = !rows_.empty();
    for (const auto& row : rows_) {
      width = std::max(width, width_of(row[column]));
      numbers = numbers && starts_as_number(row[column]);
    }
    widths.push_back(width);
    right.push_back(numbers);
  }
  std::string text;
  const auto add_line = [&](const std::vector<std::string>& cells) {
    std::string line;
    for (size_t column = 0; column < cells.size(); ++column) {
      const std::string padding(widths[column] - width_of(cells[column]), ' ');
      line += (column ? "  " : "") + (right[column] ? padding + cells[column] : cells[column] + padding);
    }
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  };
  if (std::any_of(header_.begin(), header_.end(), [](const std::string& cell) { return !cell.empty(); }))
    add_line(header_);
  for (const auto& row : rows_) add_line(row);
  return text;
}

std::string grouped(int64_t value) {
  const std::string digits = std::to_string(value);
  const size_t first = digits[0] == '-' ? 1 : 0;
  std::string text;
  for (size_t at = 0; at < digits.size(); ++at) {
    if (at > first && (digits.size() - at) % 3 == 0) text += ',';
    text += digits[at];
  }
  return text;
}

}  // namespace foresail
