#include "workflow/csv.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>

#include "core/error.h"

namespace foresail {
namespace {

struct Record {
  int64_t line = 1;
  std::vector<std::string> fields;
};

/// Splits the text into records; `line` of a record is where it begins.
std::vector<Record> records_of(const std::string& text, const std::string& source) {
  std::vector<Record> records;
  Record record;
  std::string field;
  int64_t line = 1;
  bool quoted = false, any = false;
  const auto end_field = [&] { record.fields.push_back(std::move(field)), field.clear(); };
  const auto end_record = [&] {
    if (any || !record.fields.empty()) end_field(), records.push_back(std::move(record));
    record = {line + 1, {}};
    any = false;
  };
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c == '\n') ++line;
      if (c != '"')
        field += c;
      else if (i + 1 < text.size() && text[i + 1] == '"')
        field += text[++i];
      else
        quoted = false;
      continue;
    }
    switch (c) {
      case '"': quoted = any = true; break;
      case ',': end_field(), any = true; break;
      case '\r': break;
      case '\n': end_record(), ++line; break;
      default: field += c, any = true; break;
    }
  }
  if (quoted) throw_bad_input(fmt::format("{}: line {}", source, record.line), "a quote is never closed", "close it");
  end_record();
  return records;
}

std::string trimmed(const std::string& text) {
  const size_t first = text.find_first_not_of(" \t"), last = text.find_last_not_of(" \t");
  return first == std::string::npos ? "" : text.substr(first, last - first + 1);
}

}  // namespace

CsvRow::CsvRow(std::string source, int64_t line, std::map<std::string, std::string> fields)
    : source_(std::move(source)), line_(line), fields_(std::move(fields)) {}

std::string CsvRow::text(const std::string& column) const {
  const auto found = fields_.find(column);
  return found == fields_.end() ? "" : found->second;
}

std::optional<double> CsvRow::number(const std::string& column, double least, double most) const {
  const std::string value = text(column);
  if (value.empty()) return std::nullopt;
  double result = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), result);
  if (error != std::errc() || end != value.data() + value.size() || !(result >= least && result <= most)) {
    throw_bad_input(fmt::format("{}: line {}: column '{}'", source_, line_, column),
                    fmt::format("'{}' is not a number from {:g} to {:g}", value, least, most),
                    "correct it or leave it blank");
  }
  return result;
}

std::optional<int64_t> CsvRow::integer(const std::string& column, int64_t least, int64_t most) const {
  const auto value = number(column, static_cast<double>(least), static_cast<double>(most));
  if (!value) return std::nullopt;
  if (*value != std::floor(*value)) {
    throw_bad_input(fmt::format("{}: line {}: column '{}'", source_, line_, column),
                    fmt::format("'{}' is not a whole number", text(column)), "correct it or leave it blank");
  }
  return static_cast<int64_t>(*value);
}

std::vector<CsvRow> parse_csv(const std::string& text, const std::string& source,
                              const std::vector<std::string>& required_columns) {
  const std::vector<Record> records = records_of(text, source);
  if (records.empty()) throw_bad_input(source, "the file is empty", "give a table with a header line");
  const std::vector<std::string>& header = records[0].fields;
  const std::set<std::string> columns(header.begin(), header.end());
  if (columns.size() != header.size())
    throw_bad_input(source, "a column stands twice in the header", "remove one of them");
  for (const std::string& column : required_columns) {
    if (columns.count(column) == 0) {
      throw_bad_input(source, fmt::format("the column '{}' is missing", column),
                      "see docs/planning.md for the columns");
    }
  }
  std::vector<CsvRow> rows;
  for (size_t r = 1; r < records.size(); ++r) {
    const Record& record = records[r];
    if (record.fields.size() > header.size()) {
      throw_bad_input(fmt::format("{}: line {}", source, record.line),
                      fmt::format("{} fields under {} columns", record.fields.size(), header.size()),
                      "quote fields with commas");
    }
    std::map<std::string, std::string> fields;
    for (size_t i = 0; i < record.fields.size(); ++i) fields[header[i]] = trimmed(record.fields[i]);
    rows.emplace_back(source, record.line, std::move(fields));
  }
  return rows;
}

}  // namespace foresail
