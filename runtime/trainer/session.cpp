#include "runtime/trainer/session.h"

#include <fmt/format.h>

#include "core/error.h"
#include "core/parallel.h"

namespace foresail {
namespace {

void compare_digest(const SessionRequest& request, const Program& program) {
  if (request.program_digests.empty()) return;
  const auto stage = static_cast<size_t>(program.stage);
  if (stage >= request.program_digests.size()) {
    throw_bad_input(
        request.source + ": field 'program_digests'",
        fmt::format("it has {} entries, the strategy {} stages", request.program_digests.size(), program.mesh.pp),
        "make the plan again");
  }
  const std::string actual = program_digest(program);
  if (actual != request.program_digests[stage]) {
    throw_bad_input(request.source + ": field 'program_digests'",
                    fmt::format("stage {} compiles to {} here, the plan was priced for {}", stage, actual,
                                request.program_digests[stage]),
                    "make the plan again with this version of foresail");
  }
}

}  // namespace

void require_planned_programs(const SessionRequest& request) {
  for (int stage = 0; stage < request.strategy.pp; ++stage) {
    Program program;
    try {
      program = compile_train(request.model, request.job, request.strategy, request.target, stage);
    } catch (const Error& error) {
      throw_bad_input(fmt::format("{}: field 'strategy': {}", request.source, error.thing()), error.cause(),
                      error.mend());
    }
    compare_digest(request, program);
  }
}

SessionRequest request_of(const Plan& plan, const std::string& source) {
  SessionRequest request;
  request.source = source;
  request.model = parse_model_config(plan.model_config, source + ": field 'model_config'");
  request.model.name = plan.model_name;
  request.job = plan.job;
  request.strategy = plan.strategy;
  request.target = plan.target;
  request.program_digests = plan.program_digests;
  return request;
}

std::unique_ptr<Device> make_device(const std::string& back_end, int threads) {
  set_thread_count(threads);
  if (back_end == "cpu") return make_cpu_device(threads);
  if (back_end == "reference") return make_reference_device();
  throw_bad_input(fmt::format("device '{}'", back_end), "no such back end can execute here", "use cpu or reference");
}

std::unique_ptr<Session> make_session(const SessionRequest& request, Communicator& communicator,
                                      std::unique_ptr<Device> device, const AlterProgram& alter) {
  const Mesh mesh = mesh_of(request.model, request.strategy);
  if (mesh.size() != communicator.size()) {
    throw_bad_input(fmt::format("strategy {}", to_text(request.strategy)),
                    fmt::format("it needs {} ranks, {} were started", mesh.size(), communicator.size()),
                    "start as many ranks as the plan has devices");
  }
  communicator.create_groups(mesh_groups(mesh).members);
  auto session = std::make_unique<Session>();
  session->model = request.model;
  session->job = request.job;
  session->strategy = request.strategy;
  session->rank = communicator.rank();
  session->place = mesh.coordinate_of(communicator.rank());
  // A planned Program is compiled from the plan alone; what was not planned asks the back end for its workspace.
  WorkspaceOf workspace_of;
  if (request.program_digests.empty())
    workspace_of = [&device](const OpInstance& op) { return device->workspace_bytes(op); };
  session->programs =
      compile(request.model, request.job, request.strategy, request.target, session->place.pp, workspace_of);
  compare_digest(request, session->programs.train);
  if (alter) {
    alter(session->programs.train, session->place);
    for (Program& program : session->programs.ramp) alter(program, session->place);
  }
  session->stages = batch_stages(request.job);
  session->slices = rank_slices(request.model, request.strategy, session->place, request.job.frozen);
  session->device = std::move(device);

  session->arena = std::make_unique<Arena>(arena_bytes_of(session->programs));
  const auto bind = [&](const Program& program) {
    return std::make_unique<Executor>(program, *session->device, &communicator, *session->arena, session->rank);
  };
  session->train = bind(session->programs.train);
  session->evaluate = bind(session->programs.evaluate);
  for (const Program& program : session->programs.ramp) session->ramp.push_back(bind(program));
  for (const Program& program : session->programs.fallback) session->fallback.push_back(bind(program));
  return session;
}

void Session::switch_to(Executor& executor) {
  if (active == &executor) return;
  executor.startup();
  active = &executor;
}

Session::Step Session::step_after(int64_t samples) {
  const size_t stage = batch_stage_at(stages, samples);
  Executor* const repeats = stage < fallback.size() ? fallback[stage].get() : nullptr;
  if (stage < ramp.size()) return {programs.ramp[stage], *ramp[stage], repeats};
  return {programs.train, *train, repeats};
}

GroupId world_group(const Session& session) {
  return mesh_groups(session.programs.train.mesh).index(GroupKind::world, session.rank);
}

}  // namespace foresail
