// Tools in prompts of Kimi's models: as the Python code of their tokenizers shows them
// (tools/make_kimi_tools_goldens.py).
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "outrider/text/chat_template.h"
#include "tests/temporary_directory.h"
#include "tests/text/golden_cases.h"

namespace outrider {
namespace {

constexpr const char* kAnyone = R"([{"role": "user", "content": "Hi"}])";
// As K2.5's template, which prefers declarations.
constexpr const char* kDeclaring =
    "{% if tools_ts_str %}{{ tools_ts_str }}{% else %}JSON{{ tools | tojson }}{% endif %}";

class KimiModel {
 public:
  explicit KimiModel(const std::string& chat_template,
                     const char* tokenizer_class = kKimiTokenizer) {
    const nlohmann::json config = {{"tokenizer_class", tokenizer_class},
                                   {"chat_template", chat_template}};
    std::ofstream(directory_.path() / "tokenizer_config.json") << config.dump();
  }

  std::string Render(const std::string& tools, const std::string& arguments = "") const {
    RenderOptions options;
    options.tools_json = tools;
    options.extra_json = arguments;
    return ChatTemplate::FromModelDirectory(directory_.path())->Render(kAnyone, options);
  }

 private:
  TemporaryDirectory directory_;
};

TEST(KimiTools, AreDeclaredAsByKimisCode) {
  std::ifstream file(GoldenCases() / "kimi_tools.json");
  ASSERT_TRUE(file.good());
  const nlohmann::json cases = nlohmann::json::parse(file);
  ASSERT_GT(cases.size(), 50U);
  const KimiModel model(kDeclaring);
  int undeclared = 0;
  for (const nlohmann::json& entry : cases) {
    const std::string text = model.Render(entry.at("tools"));
    if (entry.at("declarations").is_string() && entry.at("declarations") != "") {
      EXPECT_EQ(text, entry.at("declarations").get<std::string>()) << entry.at("tools");
    } else {  // no tool to declare, or a schema that is no type
      EXPECT_TRUE(text.starts_with("JSON[")) << text;
      ++undeclared;
    }
  }
  EXPECT_GT(undeclared, 5);
}

TEST(KimiTools, HaveTheirMembersSorted) {
  const std::string tools =
      R"([{"type": "function", "function": {"name": "f", "b": [{"d": 1, "c": 2}], "a": null}}])";
  EXPECT_EQ(KimiModel("{{ tools | tojson(separators=(',', ':')) }}").Render(tools),
            R"([{"function":{"a":null,"b":[{"c":2,"d":1}],"name":"f"},"type":"function"}])");
  // A tokenizer of another class leaves them as they are.
  EXPECT_EQ(
      KimiModel("{{ tools | tojson }}", "PreTrainedTokenizerFast").Render(tools),
      R"([{"type": "function", "function": {"name": "f", "b": [{"d": 1, "c": 2}], "a": null}}])");
  EXPECT_EQ(KimiModel(kDeclaring, "PreTrainedTokenizerFast").Render(tools).substr(0, 5), "JSON[");
}

TEST(KimiTools, ComeWithTheVariablesOfKimisCode) {
  const KimiModel model("{{ thinking }} {{ preserve_thinking }}{% if tools_ts_str %}{% endif %}");
  EXPECT_EQ(model.Render(""), "True False");
  EXPECT_EQ(model.Render("", R"({"thinking": false})"), "False False");
  // K2's code has none.
  EXPECT_EQ(KimiModel("{{ thinking is defined }} {{ tools is none }}").Render(""), "False True");
}

}  // namespace
}  // namespace outrider
