// Chat templates: what they are given, what they render, what is refused. One case per fault makes
// it long.
#include "outrider/text/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "outrider/base/error.h"
#include "tests/source_directory.h"
#include "tests/temporary_directory.h"

namespace outrider {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

const std::filesystem::path kModel = SourceDirectory() / "models/tiny-v3-mtp3";
constexpr const char* kHello = R"([{"role": "user", "content": "Hello"}])";

std::string Render(const std::string& source, const std::string& messages = kHello,
                   const RenderOptions& options = {}) {
  return ChatTemplate::FromString(source, {{"bos_token", "<s>"}, {"eos_token", "</s>"}})
      .Render(messages, options);
}

// The message of the error that rendering throws.
std::string Failure(const std::string& source, const std::string& messages = kHello,
                    const RenderOptions& options = {}) {
  try {
    return "no error, but: " + Render(source, messages, options).substr(0, 200);
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), AllOf(Not(HasSubstr("\n")), Not(HasSubstr("Traceback"))));
    return error.what();
  }
}

RenderOptions Quick() {
  RenderOptions options;
  options.limits.time = milliseconds(300);
  return options;
}

// Templates take the arguments of earlier calls as an object or as text.
TEST(ChatTemplateTest, ArgumentsOfCallsAreObjectsAndText) {
  const std::string messages =
      R"([{"role": "assistant", "content": "", "tool_calls": [{"id": "1", "type": "function",
          "function": {"name": "f", "arguments": "{\"b\":1,  \"a\": \"x\"}"}}]}])";
  const std::string begin = "{% set a = messages[0].tool_calls[0]['function']['arguments'] %}";
  EXPECT_EQ(Render(begin + "{% for k, v in a.items() %}{{ k }}={{ v }};{% endfor %}", messages),
            "b=1;a=x;");
  const std::string text = R"({"b":1,  "a": "x"})";
  EXPECT_EQ(Render(begin + "{{ a }}", messages), text);
  EXPECT_EQ(Render(begin + "{{ '```' + a + '\n' }}", messages), "```" + text + "\n");
  EXPECT_EQ(Render(begin + "{{ '<' ~ a ~ '>' }}", messages), "<" + text + ">");
  EXPECT_EQ(Render(begin + "{{ a if a is string else a | tojson }}", messages),
            R"({"b": 1, "a": "x"})");
}

// A call that was cut off stands in the history for ever: templates that list arguments list its
// text, the others print it.
TEST(ChatTemplateTest, MalformedArgumentsAreOneMemberAndText) {
  const std::string begin = "{% set a = messages[0].tool_calls[0]['function']['arguments'] %}";
  for (const char* text : {"no json", "{\"n\": ", "", "[1]", "5", "null", "\"x\"", "{\"a\": 1}}"}) {
    const std::string spelled = nlohmann::json(text).dump();
    const std::string messages =
        R"([{"tool_calls": [{"function": {"arguments": )" + spelled + "}}]}]";
    EXPECT_EQ(Render(begin + "{{ a }}", messages), text);
    EXPECT_EQ(Render(begin + "{{ '<' + a }}", messages), std::string("<") + text);
    EXPECT_EQ(Render(begin + "{% for k, v in a.items() %}{{ k }}={{ v }};{% endfor %}", messages),
              std::string("arguments=") + text + ";");
    EXPECT_EQ(Render(begin + "{{ a | tojson }}", messages), "{\"arguments\": " + spelled + "}");
  }
}

// Templates add the texts of members that a client may leave out.
TEST(ChatTemplateTest, ToolsWithoutParametersOrDescription) {
  const std::string source =
      "{% for t in tools %}{{ t.function.name + ': ' + t.function.description }} "
      "{{ t.function['parameters'] | tojson }};{% endfor %}";
  RenderOptions options;
  options.tools_json = R"([{"type": "function", "function": {"name": "f"}},
    {"type": "function", "function": {"name": "g", "description": null, "parameters": null}},
    {"type": "function", "function": {"name": "h", "description": "d", "parameters": {"a": 1}}}])";
  EXPECT_EQ(Render(source, kHello, options),
            R"(f:  {"type": "object", "properties": {}};g:  {"type": "object", "properties": {}};)"
            R"(h: d {"a": 1};)");
  // Printed whole, a tool is what the client gave.
  EXPECT_EQ(Render("{{ tools[0] | tojson }}", kHello, options),
            R"({"type": "function", "function": {"name": "f"}})");
}

// A directory for one test, with files in it.
class Directory {
 public:
  void Write(const std::string& name, const std::string& text) const {
    std::ofstream(path() / name) << text;
  }
  const std::filesystem::path& path() const { return directory_.path(); }

 private:
  TemporaryDirectory directory_;
};

TEST(ChatTemplate, RendersTheBundledModelsConversation) {
  const auto chat = ChatTemplate::FromModelDirectory(kModel);
  ASSERT_TRUE(chat.has_value());
  const std::string messages =
      R"([{"role":"system","content":"Be brief."},{"role":"user","content":"1+1?"},)"
      R"({"role":"assistant","content":"2"},{"role":"user","content":"<b>2+2?</b>"}])";
  EXPECT_EQ(chat->Render(messages, {}),
            "<｜begin▁of▁sentence｜>Be brief.<｜User｜>1+1?<｜Assistant｜>2<｜end▁of▁sentence｜>"
            "<｜User｜><b>2+2?</b><｜Assistant｜>");
  RenderOptions options;
  options.add_generation_prompt = false;
  EXPECT_EQ(chat->Render(kHello, options), "<｜begin▁of▁sentence｜><｜User｜>Hello");
}

TEST(ChatTemplate, GivesTheVariablesAndHelpersOfTransformers) {
  EXPECT_EQ(Render("{{ bos_token }}|{{ eos_token }}|{{ tools is none }}|{{ documents is none }}|"
                   "{{ add_generation_prompt }}|{{ nothing is defined }}"),
            "<s>|</s>|True|True|True|False");
  EXPECT_EQ(Render("{{ messages | tojson }}", R"([{"role":"a","content":"<é&'>","b":1,"a":[]}])"),
            R"([{"role": "a", "content": "<é&'>", "b": 1, "a": []}])");
  EXPECT_EQ(
      Render("{{ {'b': 1, 'a': 'é'} | tojson(indent=1, sort_keys=true, ensure_ascii=true) }}"),
      "{\n \"a\": \"\\u00e9\",\n \"b\": 1\n}");
  EXPECT_EQ(Render("{{ [1, 2] | tojson(separators=(',', ':')) }}"), "[1,2]");
  EXPECT_THAT(Render("{{ strftime_now('%Y') }}"), testing::MatchesRegex("20[0-9][0-9]"));
  EXPECT_EQ(Render("{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}"
                   "{% if i == 4 %}{% break %}{% endif %}{{ i }}{% endfor %}"),
            "023");
  EXPECT_EQ(Render("{% generation %}{{ messages[0].content }}{% endgeneration %}"), "Hello");
  // trim_blocks and lstrip_blocks: a line with a block alone leaves nothing.
  EXPECT_EQ(Render("a\n  {% if true %}\nb\n  {% endif %}\nc"), "a\nb\nc");
}

TEST(ChatTemplate, PassesToolsAndExtraVariables) {
  RenderOptions options;
  options.tools_json = R"([{"type":"function","function":{"name":"f"}}])";
  options.extra_json = R"({"enable_thinking": false, "bos_token": "mine"})";
  EXPECT_EQ(
      Render("{{ tools[0].function.name }} {{ enable_thinking }} {{ bos_token }}", kHello, options),
      "f False mine");
  options.extra_json = R"({"messages": []})";
  EXPECT_THAT(Failure("x", kHello, options), HasSubstr("must not set messages"));
}

TEST(ChatTemplate, ContinuesTheFinalMessage) {
  const std::string source = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}";
  const std::string trimming =
      "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</s>{% endfor %}";
  RenderOptions options;
  options.add_generation_prompt = false;
  options.continue_final_message = true;
  const std::string messages = R"([{"role":"u","content":"ab"},{"role":"a","content":" ab "}])";
  EXPECT_EQ(Render(source, messages, options), "<u>ab</s><a> ab ");
  EXPECT_EQ(Render(trimming, messages, options), "<u>ab</s><a>ab");
  EXPECT_THAT(Failure("x", messages, options), HasSubstr("does not show the last message"));
  EXPECT_THAT(Failure(source, "[]", options), HasSubstr("at least one message"));
  options.add_generation_prompt = true;
  EXPECT_THAT(Failure(source, messages, options), HasSubstr("exclude each other"));
}

TEST(ChatTemplate, ReportsTheTemplatesErrorsWithTheirLine) {
  EXPECT_EQ(Failure("a\n{{ raise_exception('roles must\nalternate') }}"),
            "chat template: line 2: roles must alternate");
  EXPECT_THAT(Failure("a\n\n{% if %}"), HasSubstr("chat template: line 3: Expected an expression"));
  EXPECT_THAT(Failure("a\n{{ missing.name }}"), HasSubstr("line 2: 'missing' is undefined"));
  EXPECT_THAT(Failure("{{ 1 // 0 }}"), HasSubstr("line 1: ZeroDivisionError"));
  EXPECT_THAT(Failure("{{ 'a' + 1 }}"), HasSubstr("line 1: TypeError"));
  EXPECT_THAT(Failure("{% include 'x' %}"), HasSubstr("chat template: line 1"));
  EXPECT_THAT(Failure("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"),
              HasSubstr("recursing too deeply"));
  EXPECT_THAT(Failure("{{" + std::string(20000, '(') + "1" + std::string(20000, ')') + "}}"),
              HasSubstr("chat template"));
}

TEST(ChatTemplate, ReportsWhatIsWrongWithTheRequest) {
  EXPECT_THAT(Failure("x", "[{]"), HasSubstr("messages is not valid JSON"));
  EXPECT_EQ(Failure("x", "{}"), "messages must be a JSON array");
  EXPECT_EQ(Failure("x", "[1]"), "messages[0] must be an object");
  RenderOptions options;
  options.tools_json = "3";
  EXPECT_EQ(Failure("x", kHello, options), "tools must be a JSON array");
  options = {};
  options.extra_json = "[]";
  EXPECT_EQ(Failure("x", kHello, options), "chat_template_kwargs must be a JSON object");
  EXPECT_THAT(Failure("x", std::string(100000, '[')), HasSubstr("nested"));
}

TEST(ChatTemplate, AlwaysReturnsValidUtf8) {
  EXPECT_EQ(Render("{{ messages[0].content }}", R"([{"content":"a\ud800b\ud83d\ude42"}])"),
            "a\uFFFDb🙂");
  EXPECT_EQ(Render("\xFFx{{ messages[0].content }}", "[{\"content\":\"\xC3\"}]"), "\uFFFDx\uFFFD");
}

TEST(HostileTemplate, CannotReachAttributesOfTheInterpreter) {
  EXPECT_THAT(Failure("{{ ''.__class__ }}"), HasSubstr("'__class__' of 'str' is not allowed"));
  EXPECT_THAT(Failure("{{ ''['__class__'] }}"), HasSubstr("'__class__' of 'str' is not allowed"));
  EXPECT_THAT(Failure("{{ ''|attr('__class__') }}"), HasSubstr("not allowed"));
  EXPECT_THAT(Failure("{{ raise_exception.__globals__ }}"), HasSubstr("not allowed"));
  EXPECT_THAT(Failure("{{ '{0.__class__}'.format(1) }}"), HasSubstr("not allowed"));
  EXPECT_THAT(Failure("{{ [''] | map(attribute='__class__') | list }}"), HasSubstr("not allowed"));
  EXPECT_THAT(Failure("{{ self.__init__ }}"), HasSubstr("not allowed"));
  EXPECT_THAT(Failure("{{ cycler.__init__.__globals__.os }}"), HasSubstr("not allowed"));
  EXPECT_THAT(Failure("{{ messages.append(1) }}"), HasSubstr("'append' of 'list' is not allowed"));
  EXPECT_THAT(Failure("{% import 'os' as os %}{{ os }}"), HasSubstr("chat template"));
}

TEST(HostileTemplate, IsEndedAtTheTimeLimit) {
  const std::string loops[] = {
      "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
      "{% for i in range(100000) %}{% for j in range(100000) %}x{% endfor %}{% endfor %}",
      "{% macro f(n) %}{% for i in range(99999) %}{{ f(n) }}{% endfor %}{% endmacro %}"
      "{% for i in range(99999) %}{% for j in range(99999) %}{% set x = i * j %}{% endfor %}{% "
      "endfor %}",
      "{% for i in range(99999) %}{{ range(99999) | map('string') | list | length }}{% endfor %}",
      "{% for i in range(99999) %}{{ range(99999) | sum }}{% endfor %}",
  };
  for (const std::string& loop : loops) {
    const auto start = steady_clock::now();
    EXPECT_THAT(Failure(loop, kHello, Quick()), HasSubstr("ran longer than 300 ms")) << loop;
    EXPECT_LT(steady_clock::now() - start, std::chrono::seconds(3)) << loop;
    EXPECT_EQ(Render("{{ 1 }}"), "1");  // and the interpreter is as good as before
  }
}

/// All threads of this process on one processor while it lives.
class OneProcessor {
 public:
  OneProcessor() {
    sched_getaffinity(0, sizeof(before_), &before_);
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    Bind(one);
  }
  ~OneProcessor() { Bind(before_); }
  OneProcessor(const OneProcessor&) = delete;
  OneProcessor& operator=(const OneProcessor&) = delete;

 private:
  static void Bind(const cpu_set_t& processors) {
    for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
      sched_setaffinity(std::stoi(thread.path().filename()), sizeof(processors), &processors);
    }
  }

  cpu_set_t before_;
};

// Time is the processor's: on a busy machine ordinary templates take long, and are rendered.
TEST(ChatTemplateTest, ABusyMachineRefusesNothing) {
  const std::string source = "{% for i in range(100000) %}{% endfor %}done";
  Render(source);
  const std::clock_t start = std::clock();  // of the process, in which nothing else runs
  Render(source);
  RenderOptions options;
  options.limits.time = milliseconds(10 + 2 * 1000 * (std::clock() - start) / CLOCKS_PER_SEC);
  const OneProcessor processor;
  std::vector<std::jthread> others;  // eight that want the same processor
  for (int i = 0; i < 8; ++i) {
    others.emplace_back([](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
      }
    });
  }
  const auto busy_start = steady_clock::now();
  const std::string text = Render(source, kHello, options);
  const auto took = steady_clock::now() - busy_start;
  EXPECT_EQ(text, "done");
  EXPECT_GT(took, options.limits.time) << "the processor was not busy";
}

TEST(HostileTemplate, CannotLoopOverAHugeRange) {
  EXPECT_THAT(Failure("{% for i in range(10**9) %}{% endfor %}"), HasSubstr("Range too big"));
  EXPECT_THAT(Failure("{{ range(10**9) | list | length }}"), HasSubstr("Range too big"));
}

TEST(HostileTemplate, IsRefusedHugeResults) {
  RenderOptions options;
  options.limits.memory_bytes = 64UL << 20;
  options.limits.characters = 1000000;
  const std::string bombs[] = {
      "{{ 'x' * 10**10 }}",
      "{{ ([0] * 10**10) | length }}",
      "{{ 'x' | center(10**10) }}",
      "{{ '%10000000000d' | format(1) }}",
      "{{ '{:10000000000}'.format(1) }}",
      "{{ 'x'.ljust(10**10) }}",
      "{% set n = namespace(s='xxxxxxxx') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% "
      "endfor %}",
      "{% set n = namespace(s=[0]) %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}",
  };
  for (const std::string& bomb : bombs) {
    EXPECT_THAT(Failure(bomb, kHello, options), HasSubstr("more than 64 MiB of memory")) << bomb;
    EXPECT_EQ(Render("{{ 1 }}"), "1");
  }
  // 2^60 brackets: time or memory runs out, whichever is first.
  EXPECT_THAT(
      Failure("{% set n = namespace(s=[0]) %}{% for i in range(60) %}{% set n.s = [n.s, n.s] %}"
              "{% endfor %}{{ n.s | tojson }}",
              kHello, Quick()),
      testing::AnyOf(HasSubstr("of memory"), HasSubstr("ran longer")));
  EXPECT_THAT(Failure("{{ 'x' * 2000000 }}", kHello, options), HasSubstr("longer than 1000000"));
  EXPECT_THAT(Failure("{% for i in range(99999) %}{{ 'xxxxxxxxxxxxxxxxxxx' }}{% endfor %}", kHello,
                      options),
              HasSubstr("longer than 1000000"));
  EXPECT_THAT(Failure("{{ 10**(10**10) }}"), HasSubstr("integers are limited"));
  EXPECT_THAT(Failure("{% set n = namespace(x=3) %}{% for i in range(60) %}"
                      "{% set n.x = n.x * n.x %}{% endfor %}"),
              HasSubstr("integers are limited"));
}

TEST(HostileTemplate, CaughtInAnOperationDoesNotCatchItsCallers) {
  // Comparing two lists that share their parts 2^27 times over: CPython neither allocates nor
  // returns.
  const std::string source =
      "{% set a = namespace(x=[0]) %}{% set b = namespace(x=[0]) %}"
      "{% for i in range(27) %}{% set a.x = [a.x, a.x] %}{% set b.x = [b.x, b.x] %}{% endfor %}"
      "{{ a.x == b.x }}";
  RenderOptions options;
  options.limits.time = milliseconds(300);
  const auto start = steady_clock::now();
  const std::string message = Failure(source, kHello, options);
  EXPECT_THAT(message, testing::AnyOf(HasSubstr("cannot be interrupted"), HasSubstr("ran longer")));
  EXPECT_LT(steady_clock::now() - start, std::chrono::seconds(8));
  // It ends some time, and then templates are rendered again.
  for (int i = 0; i < 1200; ++i) {
    try {
      EXPECT_EQ(Render("{{ 1 }}"), "1");
      return;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
      std::this_thread::sleep_for(milliseconds(200));
    }
  }
  FAIL() << "templates were not rendered again";
}

// What a server says at its start names the file; what a client gets does not.
TEST(ChatTemplate, IsCheckedWithoutAConversation) {
  const std::string name = "/opt/models/x/chat_template.jinja";
  const auto failure = [&](const std::string& source) {
    const auto chat = ChatTemplate::FromString(source, {}, name);
    try {
      chat.Check();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      return std::string(error.what());
    }
    return std::string("none");
  };
  EXPECT_EQ(failure("{{ messages[0].no.such.thing }}"), "none") << "rendering would fail";
  EXPECT_EQ(failure("{{ raise_exception('no') }}"), "none");
  for (const char* source : {"\n{% for m in messages %}x", "\n{{ messages | nosuchfilter }}",
                             "\n{% endfor %}", "\n{{ 1 +"}) {
    EXPECT_THAT(failure(source), AllOf(HasSubstr(name), HasSubstr("line 2"))) << source;
    const auto chat = ChatTemplate::FromString(source, {}, name);
    try {
      chat.Render(kHello, {});
      ADD_FAILURE() << source;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), AllOf(Not(HasSubstr("/opt")), HasSubstr("chat template: line 2")));
    }
  }
}

TEST(ChatTemplate, TheTemplateForToolsIsCheckedToo) {
  const TemporaryDirectory directory;
  std::ofstream(directory.path() / "tokenizer_config.json")
      << R"({"chat_template": [{"name": "default", "template": "x"},)"
         R"({"name": "tool_use", "template": "{% if %}"}]})";
  const auto chat = ChatTemplate::FromModelDirectory(directory.path());
  EXPECT_THROW(chat.value().Check(), Error);
}

TEST(ChatTemplate, IsRenderedFromManyThreads) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([t] {
      const std::string id = std::to_string(t);
      const auto chat = ChatTemplate::FromString(id + ":{{ messages[0].content }}", {});
      for (int i = 0; i < 50; ++i) {
        const std::string content = id + "-" + std::to_string(i);
        EXPECT_EQ(chat.Render(R"([{"content":")" + content + "\"}]", {}), id + ":" + content);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// A template that is given much works for as long as it may; meanwhile others are rendered.
TEST(ChatTemplate, SmallConversationsDoNotWaitForLargeOnes) {
  std::atomic<bool> ended{false};
  std::thread large([&] {
    RenderOptions options;
    options.limits.time = milliseconds(2000);
    const std::string messages =
        R"([{"role":"user","content":")" + std::string(100'000, 'a') + "\"}]";
    EXPECT_THAT(
        Failure("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
                messages, options),
        HasSubstr("ran longer"));
    ended = true;
  });
  std::this_thread::sleep_for(milliseconds(100));
  EXPECT_EQ(Render("{{ messages[0].content }}"), "Hello");
  EXPECT_FALSE(ended);
  large.join();
  RenderOptions options;
  options.limits.input_bytes = 1000;
  EXPECT_THAT(Failure("{{ 1 }}", R"([{"role":"user","content":")" + std::string(2000, 'a') + "\"}]",
                      options),
              HasSubstr("a chat template takes at most 1000"));
}

TEST(ChatTemplate, LeavesTheProcessesSignalsAlone) {
  struct sigaction before{};
  struct sigaction after{};
  ASSERT_EQ(sigaction(SIGINT, nullptr, &before), 0);
  EXPECT_EQ(Render("x"), "x");
  ASSERT_EQ(sigaction(SIGINT, nullptr, &after), 0);
  EXPECT_EQ(before.sa_handler, after.sa_handler);
  struct sigaction pipe{};
  ASSERT_EQ(sigaction(SIGPIPE, nullptr, &pipe), 0);
  EXPECT_EQ(pipe.sa_handler, SIG_DFL);
}

TEST(ChatTemplate, DoesNotReadThePythonEnvironment) {
  ASSERT_NE(getenv("PYTHONPATH"), nullptr)
      << "run by ctest, which sets PYTHONPATH to a shadow jinja2";
  EXPECT_EQ(Render("{{ 'fine' }}"), "fine");
}

TEST(ModelDirectory, MayHaveNoTemplate) {
  const Directory directory;
  EXPECT_FALSE(ChatTemplate::FromModelDirectory(directory.path()).has_value());
  directory.Write("tokenizer_config.json", R"({"bos_token": "<s>", "chat_template": null})");
  EXPECT_FALSE(ChatTemplate::FromModelDirectory(directory.path()).has_value());
}

TEST(ModelDirectory, PrefersTheJinjaFile) {
  const Directory directory;
  directory.Write("tokenizer_config.json",
                  R"({"bos_token": {"content": "<s>", "lstrip": false}, "chat_template": "old"})");
  EXPECT_EQ(ChatTemplate::FromModelDirectory(directory.path())->Render(kHello, {}), "old");
  directory.Write("chat_template.jinja", "{{ bos_token }}new");
  EXPECT_EQ(ChatTemplate::FromModelDirectory(directory.path())->Render(kHello, {}), "<s>new");
}

TEST(ModelDirectory, ChoosesAmongNamedTemplates) {
  const Directory directory;
  directory.Write("tokenizer_config.json",
                  R"({"chat_template": [{"name": "tool_use", "template": "with tools"},
                                        {"name": "default", "template": "plain"}]})");
  const auto chat = ChatTemplate::FromModelDirectory(directory.path());
  EXPECT_EQ(chat->Render(kHello, {}), "plain");
  RenderOptions options;
  options.tools_json = "[]";
  EXPECT_EQ(chat->Render(kHello, options), "with tools");
}

TEST(ModelDirectory, RefusesMalformedConfigurations) {
  const std::pair<const char*, const char*> cases[] = {
      {"{", "tokenizer_config.json: not valid JSON"},
      {"[]", "tokenizer_config.json: must hold a JSON object"},
      {R"({"chat_template": 3})", "chat_template must be a string or a list"},
      {R"({"chat_template": [{"name": "x"}]})", "has an entry that is not"},
      {R"({"chat_template": [{"name": "x", "template": "y"}]})", "no template named \"default\""},
      {R"({"add_bos_token": 3})", "add_bos_token must be true or false"},
  };
  const Directory directory;
  for (const auto& [text, message] : cases) {
    directory.Write("tokenizer_config.json", text);
    try {
      (void)ChatTemplate::FromModelDirectory(directory.path());
      ADD_FAILURE() << "accepted " << text;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(message));
    }
  }
}

}  // namespace
}  // namespace outrider
