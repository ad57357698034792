#include "cli/flags.h"

#include <charconv>
#include <cmath>
#include <map>
#include <string_view>

#include "core/error.h"

namespace foresail {
namespace {

constexpr double kLargestExact = 9007199254740992.0;  // 2^53: beyond it a double no longer holds every whole number

/// The number at the start of `text`; `rest` gets what follows. False if there is none.
bool leading_number(std::string_view text, double& value, std::string_view& rest) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  rest = text.substr(static_cast<size_t>(end - text.data()));
  return error == std::errc() && std::isfinite(value);
}

const std::map<std::string_view, double>& units() {
  static const std::map<std::string_view, double> table = {
      {"", 1},      {"B", 1},        {"kB", 1e3},     {"KB", 1e3},     {"MB", 1e6},     {"GB", 1e9},
      {"TB", 1e12}, {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40},
  };
  return table;
}

int64_t whole(double value, const std::string& text, const std::string& flag, const char* mend) {
  if (!(value >= 1) || value > kLargestExact || value != std::floor(value)) {
    throw_bad_input(flag, "'" + text + "' is no whole number from 1 to 2^53", mend);
  }
  return static_cast<int64_t>(value);
}

CLI::Option* add_text_option(CLI::App& app, const std::string& name, const std::string& help, const std::string& kind,
                             const std::function<void(const std::string&)>& take) {
  return app.add_option_function<std::string>(name, take, help)->type_name(kind);
}

}  // namespace

int64_t count_from_text(const std::string& text, const std::string& flag) {
  double value = 0;
  std::string_view rest;
  if (!leading_number(text, value, rest) || !rest.empty()) {
    throw_bad_input(flag, "'" + text + "' is no number", "give a whole number such as 8 or 300e9");
  }
  return whole(value, text, flag, "give a whole number such as 8 or 300e9");
}

int64_t bytes_from_text(const std::string& text, const std::string& flag) {
  constexpr const char* kMend = "give bytes, or a number with KiB, MiB, GiB, TiB, kB, MB, GB or TB";
  double value = 0;
  std::string_view rest;
  if (!leading_number(text, value, rest)) throw_bad_input(flag, "'" + text + "' is no size", kMend);
  const auto unit = units().find(rest);
  if (unit == units().end()) throw_bad_input(flag, "'" + text + "' has an unknown unit", kMend);
  return whole(std::floor(value * unit->second), text, flag, kMend);
}

CLI::Option* add_json(CLI::App& app, bool& json) {
  return app.add_flag("--json", json, "One JSON document on standard output; logs on standard error");
}

CLI::Option* add_count(CLI::App& app, const std::string& name, int64_t& value, const std::string& help) {
  return add_text_option(app, name, help, "N",
                         [name, &value](const std::string& text) { value = count_from_text(text, name); });
}

CLI::Option* add_bytes(CLI::App& app, const std::string& name, int64_t& value, const std::string& help) {
  return add_text_option(app, name, help, "BYTES",
                         [name, &value](const std::string& text) { value = bytes_from_text(text, name); });
}

CLI::Option* add_positive(CLI::App& app, const std::string& name, double& value, const std::string& help) {
  return add_text_option(app, name, help, "NUMBER", [name, &value](const std::string& text) {
    std::string_view rest;
    if (!leading_number(text, value, rest) || !rest.empty() || !(value > 0)) {
      throw_bad_input(name, "'" + text + "' is no number above 0", "give a number such as 1.5");
    }
  });
}

CLI::Option* add_path(CLI::App& app, const std::string& name, std::filesystem::path& value, const std::string& help) {
  const char* kind = name.starts_with('-') ? "PATH" : "";  // an argument's own name says what it is
  return add_text_option(app, name, help, kind, [name, &value](const std::string& text) {
    if (text.empty()) throw_bad_input(name, "the path is empty", "give the path of a file or folder");
    value = text;
  });
}

void add_not_built(CLI::App& app, const std::string& name, bool takes_value, const std::string& help) {
  const std::string note = help + " (not built yet)";
  const auto refuse = [name] { throw_bad_input(name, "this part of foresail is not built yet", "leave the flag out"); };
  if (takes_value) {
    app.add_option_function<std::string>(
           name, [refuse](const std::string&) { refuse(); }, note)
        ->type_name("VALUE");
  } else {
    app.add_flag_callback(name, refuse, note);
  }
}

void add_example(CLI::App& app, const std::string& example) { app.footer("Example:\n  " + example + "\n"); }

}  // namespace foresail
