#include "program/mesh_json.h"

namespace foresail {

Json mesh_form(const Mesh& mesh) {
  Json json{{"pp", mesh.pp},
            {"dp", mesh.dp},
            {"cp", mesh.cp},
            {"tp", mesh.tp},
            {"shard", mesh.shard},
            {"kv_copies", mesh.kv_copies},
            {"embedding_pair", mesh.embedding_pair}};
  if (mesh.has_experts) {
    json["experts"] = {{"ep", mesh.ep}, {"etp", mesh.etp}, {"shard", mesh.expert_shard}};
  }
  return json;
}

Mesh mesh_from(const JsonObject& object) {
  Mesh mesh;
  int64_t devices = 1;
  const auto degree = [&](const char* key) {
    const int64_t value = object.require_int(key, 1, kMostDevices);
    devices *= value;
    if (devices > kMostDevices) object.fail(key, "the mesh has too many devices", "check the dump");
    return static_cast<int32_t>(value);
  };
  mesh.pp = degree("pp");
  mesh.dp = degree("dp");
  mesh.cp = degree("cp");
  mesh.tp = degree("tp");
  const auto divisor = [](const JsonObject& of, const char* key, int32_t whole) {
    const int64_t value = of.get_int(key, 1, 1, whole);
    if (whole % value != 0) of.fail(key, "it does not divide its ranks", "check the dump");
    return static_cast<int32_t>(value);
  };
  mesh.shard = divisor(object, "shard", mesh.data_ranks());
  mesh.kv_copies = divisor(object, "kv_copies", mesh.tp);
  mesh.embedding_pair = object.get_bool("embedding_pair", true);
  mesh.has_experts = object.has("experts");
  if (!mesh.has_experts) return mesh;
  const JsonObject experts = object.require_object("experts");
  mesh.ep = divisor(experts, "ep", mesh.stage_ranks());
  mesh.etp = divisor(experts, "etp", mesh.stage_ranks() / mesh.ep);
  mesh.expert_shard = divisor(experts, "shard", mesh.edp());
  return mesh;
}

}  // namespace foresail
