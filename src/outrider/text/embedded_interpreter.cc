// The CPython that the program embeds for chat templates. It starts on the first use, lives until
// the process ends, on threads of its own ("chat templates"), one for small jobs and one for large
// ones, and keeps each template within limits of time and memory.
#include <pthread.h>
#include <pybind11/embed.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <tuple>
#include <utility>

#include "outrider/base/error.h"
#include "outrider/text/template_guard.h"
#include "outrider/text/template_interpreter.h"
#include "outrider/text/template_program.h"
#include "outrider/text/utf8.h"

namespace outrider {
namespace {

namespace py = pybind11;

// How far beyond its time a job may still run before its callers give up on it. It can only be
// inside one operation of CPython that neither returns nor allocates.
constexpr std::chrono::seconds kGrace{1};

// Jobs of more bytes have a thread of their own, so that others wait for them only as long as a
// thread keeps Python to itself: this time, or one operation of CPython.
constexpr size_t kLargeJob = size_t{64} << 10;
constexpr double kSwitchSeconds = 0.001;

// Starts Python, cut off from the environment, the user's site directory and signals. Leaves the
// GIL with this thread.
void StartPython() {
  OUTRIDER_CHECK(Py_IsInitialized() == 0, "another part of this process runs Python");
  const auto require = [](PyStatus status) {
    if (PyStatus_Exception(status) != 0) {
      throw Error(ErrorCode::kUnavailable,
                  status.err_msg == nullptr ? "unknown error" : status.err_msg);
    }
  };
  PyPreConfig before;
  PyPreConfig_InitIsolatedConfig(&before);
  before.utf8_mode = 1;
  before.allocator = PYMEM_ALLOCATOR_MALLOC;
  require(Py_PreInitialize(&before));
  InstallTemplateAllocator();
  PyConfig config;
  PyConfig_InitIsolatedConfig(&config);
  config.install_signal_handlers = 0;
  config.site_import = 0;
  config.write_bytecode = 0;
  config.pathconfig_warnings = 0;
  PyStatus status =
      PyConfig_SetBytesString(&config, &config.program_name, OUTRIDER_PYTHON_EXECUTABLE);
  if (PyStatus_Exception(status) == 0) status = Py_InitializeFromConfig(&config);
  PyConfig_Clear(&config);
  require(status);
}

// The function `render` of the template program.
py::object LoadProgram() {
  const py::module_ sys = py::module_::import("sys");
  sys.attr("path").attr("append")(OUTRIDER_JINJA2_DIRECTORY);
  sys.attr("setswitchinterval")(kSwitchSeconds);
  // Python reports exceptions that it must ignore (in a generator that is thrown away) there.
  sys.attr("stderr") = py::none();
  py::dict globals;
  globals["__name__"] = "outrider_chat_template";
  globals["__builtins__"] = py::module_::import("builtins");
  py::exec(kTemplateProgram, globals);
  return globals["render"];
}

py::str Text(const std::string& text) { return {ReplaceInvalidUtf8(text)}; }

TemplateOutcome RunJob(const py::object& render, const TemplateJob& job,
                       std::chrono::nanoseconds deadline) {
  py::object given = py::none();
  py::dict variables;
  variables["special_tokens"] = Text(job.special_tokens);
  variables["messages"] = Text(job.messages);
  variables["tools"] = Text(job.tools);
  variables["extra"] = Text(job.extra);
  variables["kimi_tools"] = job.kimi_tools;
  variables["add_generation_prompt"] = job.add_generation_prompt;
  variables["continue_final_message"] = job.continue_final_message;
  if (!job.compile_only) given = variables;
  const py::str source = Text(job.source);
  const TemplateGuard guard(deadline, job.limits.memory_bytes);
  try {
    const py::tuple result = render(source, given, job.limits.characters);
    if (!guard.out_of_time() && !guard.out_of_memory()) {
      return {result[0].cast<std::string>(), result[1].cast<std::string>()};
    }
  } catch (const py::error_already_set& error) {
    if (!guard.out_of_time() && !guard.out_of_memory()) return {"template", error.what()};
  }
  return {guard.out_of_time() ? "time" : "memory", {}};
}

// Python with the template program in it. Never destroyed: Python is not finalised.
class Program {
 public:
  /// Starts Python when it is first called.
  static const Program& Get() {
    static const Program* const kProgram = new Program;
    return *kProgram;
  }

  /// Without the GIL.
  TemplateOutcome Run(const TemplateJob& job, std::chrono::nanoseconds deadline) const {
    const py::gil_scoped_acquire gil;
    return RunJob(render_, job, deadline);
  }

  /// Why there is no Python; "": there is.
  const std::string& failure() const { return failure_; }

 private:
  Program() {
    try {
      StartPython();
      // A thread without a Python state that called it first would keep one that is gone.
      py::detail::get_internals();
      render_ = LoadProgram();
      PyEval_SaveThread();
    } catch (const std::exception& error) {
      // Its text may name files of this machine, which is nothing for a client.
      const std::string_view what = error.what();
      SPDLOG_ERROR("Python, which renders chat templates, does not run: {}",
                   what.substr(0, what.find('\n')));
      failure_ = "Python, which renders chat templates, does not run (the log says why)";
    }
  }

  py::object render_;
  std::string failure_;
};

// A thread that runs jobs, and those that wait for it. Never destroyed.
class TemplateThread {
 public:
  static TemplateThread& Small() {
    static TemplateThread* const kThread = new TemplateThread;
    return *kThread;
  }
  static TemplateThread& Large() {
    static TemplateThread* const kThread = new TemplateThread;
    return *kThread;
  }

  TemplateOutcome Run(const TemplateJob& job) {
    const auto ticket = std::make_shared<Ticket>(job);
    std::unique_lock lock(mutex_);
    queue_.push_back(ticket);
    changed_.notify_all();
    while (!ticket->done) {
      changed_.wait_for(lock, std::chrono::milliseconds(200));
      if (Small().IsCaught() || Large().IsCaught()) {  // each would keep Python to itself
        std::erase(queue_, ticket);
        throw Error(
            ErrorCode::kUnavailable,
            "a chat template is caught in an operation that cannot be interrupted; no template "
            "can be rendered until it ends");
      }
    }
    if (!ticket->failure.empty()) throw Error(ErrorCode::kUnavailable, ticket->failure);
    return std::move(ticket->outcome);
  }

 private:
  TemplateThread() {
    std::thread([this] { Work(); }).detach();
  }

  // Whether the job that runs should have ended.
  bool IsCaught() const {
    const std::chrono::nanoseconds deadline(deadline_.load());
    return deadline.count() != 0 && ReadCpuClock(clock_) > deadline + kGrace;
  }

  struct Ticket {
    explicit Ticket(TemplateJob what) : job(std::move(what)) {}

    TemplateJob job;
    bool done = false;
    TemplateOutcome outcome;
    std::string failure;  // Python itself could not run
  };

  [[noreturn]] void Work() {
    pthread_setname_np(pthread_self(), "chat templates");
    pthread_getcpuclockid(pthread_self(), &clock_);  // read by others only while a job runs
    const Program& program = Program::Get();
    while (true) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return !queue_.empty(); });
      const std::shared_ptr<Ticket> ticket = std::move(queue_.front());
      queue_.pop_front();
      const std::chrono::nanoseconds deadline = ReadCpuClock(clock_) + ticket->job.limits.time;
      deadline_ = deadline.count();
      lock.unlock();
      TemplateOutcome outcome;
      if (program.failure().empty()) outcome = program.Run(ticket->job, deadline);
      lock.lock();
      deadline_ = 0;
      ticket->outcome = std::move(outcome);
      ticket->failure = program.failure();
      ticket->done = true;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Ticket>> queue_;
  clockid_t clock_ = 0;               // processor time of the thread that runs jobs
  std::atomic<int64_t> deadline_{0};  // of the running job, in nanoseconds; 0: none runs
};

class EmbeddedInterpreter : public TemplateInterpreter {
 public:
  TemplateOutcome Run(const TemplateJob& job) override {
    const bool is_large = job.input_bytes() > kLargeJob;
    return (is_large ? TemplateThread::Large() : TemplateThread::Small()).Run(job);
  }
};

}  // namespace

TemplateInterpreter& ProcessTemplateInterpreter() {
  static TemplateInterpreter* const kInterpreter = new EmbeddedInterpreter;
  return *kInterpreter;
}

}  // namespace outrider
