// Flags that several verbs share, with the checks that CLI11 leaves to us: finite numbers, ranges, sizes with units.
#pragma once

#include <CLI/CLI.hpp>

#include <cstdint>
#include <filesystem>
#include <string>

namespace foresail {

/// --json: one JSON document on standard output in place of text.
CLI::Option* add_json(CLI::App& app, bool& json);

/// A whole number of 1 or more; "300e9" is allowed.
CLI::Option* add_count(CLI::App& app, const std::string& name, int64_t& value, const std::string& help);
/// Bytes: "1500000", "16GiB" (2^30), "40GB" (10^9).
CLI::Option* add_bytes(CLI::App& app, const std::string& name, int64_t& value, const std::string& help);
/// A finite number above 0.
CLI::Option* add_positive(CLI::App& app, const std::string& name, double& value, const std::string& help);
CLI::Option* add_path(CLI::App& app, const std::string& name, std::filesystem::path& value, const std::string& help);

/// A flag of the contract whose part is not built: its use is refused with one line. `takes_value`: it is followed by
/// one.
void add_not_built(CLI::App& app, const std::string& name, bool takes_value, const std::string& help);

/// The example at the end of a verb's help.
void add_example(CLI::App& app, const std::string& example);

// The parsers behind them; `flag` names the value in errors. Throw bad_input.
int64_t count_from_text(const std::string& text, const std::string& flag);
int64_t bytes_from_text(const std::string& text, const std::string& flag);

}  // namespace foresail
