// Comma-separated tables with a header line (RFC 4180: quoted fields, doubled quotes, line breaks inside quotes).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace foresail {

/// One row; knows its file and line for errors. Blank and missing fields are the same.
class CsvRow {
 public:
  CsvRow(std::string source, int64_t line, std::map<std::string, std::string> fields);
  std::string text(const std::string& column) const;  ///< "" if blank
  /// Empty if blank. Throws bad_input naming file, line and column if it is no number in [least, most].
  std::optional<double> number(const std::string& column, double least, double most) const;
  std::optional<int64_t> integer(const std::string& column, int64_t least, int64_t most) const;

 private:
  std::string source_;
  int64_t line_;
  std::map<std::string, std::string> fields_;
};

/// Throws bad_input naming line and cause: no header, a column twice, an unclosed quote, too many fields, a required
/// column missing.
std::vector<CsvRow> parse_csv(const std::string& text, const std::string& source,
                              const std::vector<std::string>& required_columns);

}  // namespace foresail
