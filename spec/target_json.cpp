// foresail.target/1: embedded in plans and hashed with them.
#include "core/json.h"
#include "spec/forms_json.h"
#include "spec/target.h"

namespace foresail {
namespace {

constexpr const char* kSchema = "foresail.target/1";
constexpr int64_t kMostAlignment = int64_t{1} << 30;

}  // namespace

Json target_form(const Target& target) {
  Json workspace = Json::object();
  for (const auto& [signature, bytes] : target.workspace_bytes) workspace[signature] = bytes;
  return {{"schema", kSchema},
          {"back_end", target.back_end},
          {"alignment", target.alignment},
          {"threads", target.threads},
          {"unfused_attention", target.unfused_attention},
          {"fused_kernels", target.fused_kernels},
          {"blocking_communication", target.blocking_communication},
          {"workspace_bytes", workspace},
          {"framework_bytes", target.framework_bytes},
          {"framework_bytes_spread", target.framework_bytes_spread}};
}

Target target_from(const JsonObject& object) {
  object.require_schema(kSchema);
  object.refuse_unknown_keys({"schema", "back_end", "alignment", "threads", "unfused_attention", "fused_kernels",
                              "blocking_communication", "workspace_bytes", "framework_bytes",
                              "framework_bytes_spread"});
  Target t;
  t.back_end = object.get_string("back_end", t.back_end);
  if (t.back_end != "cpu" && t.back_end != "reference" && t.back_end != "catalogue") {
    object.fail("back_end", "'" + t.back_end + "' is unknown", "use cpu, reference or catalogue");
  }
  t.alignment = object.get_int("alignment", t.alignment, 1, kMostAlignment);
  if ((t.alignment & (t.alignment - 1)) != 0) object.fail("alignment", "is not a power of two", "use 64");
  t.threads = static_cast<int32_t>(object.get_int("threads", t.threads, 1, 1 << 16));
  t.unfused_attention = object.get_bool("unfused_attention", t.unfused_attention);
  t.fused_kernels = object.get_bool("fused_kernels", t.fused_kernels);
  t.blocking_communication = object.get_bool("blocking_communication", t.blocking_communication);
  t.workspace_bytes = int_map_from(object, "workspace_bytes", 0, kMostBytes);
  t.framework_bytes = object.get_int("framework_bytes", t.framework_bytes, 0, kMostBytes);
  t.framework_bytes_spread = object.get_int("framework_bytes_spread", t.framework_bytes_spread, 0, kMostBytes);
  return t;
}

std::string target_to_json(const Target& target) { return json_text(target_form(target)); }

Target target_from_json(const std::string& text, const std::string& source) {
  const Json value = parse_json(text, source);
  return target_from(JsonObject(value, source));
}

}  // namespace foresail
