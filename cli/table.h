// Aligned columns for people.
#pragma once

#include <string>
#include <vector>

namespace foresail {

/// Rows of text under a header. Columns that hold only numbers (with or without a unit after a space) stand
/// right-aligned, the others left-aligned; columns are two spaces apart, lines have no trailing blanks.
class Table {
 public:
  explicit Table(std::vector<std::string> header) : header_(std::move(header)) {}
  /// Missing cells at the end are empty. Throws (a programmer's error) if there are more cells than columns.
  void add(std::vector<std::string> row);
  std::string text() const;

 private:
  std::vector<std::string> header_;  ///< may be empty strings only: then no header line is printed
  std::vector<std::vector<std::string>> rows_;
};

/// "12,345,678".
std::string grouped(int64_t value);

}  // namespace foresail
