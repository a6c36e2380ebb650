// How fast the bundled tokenizer encodes: prints MB/s per core, and fails below 10 MB/s in a
// Release build without sanitizers (the only kind in which speed means anything).
#include <gtest/gtest.h>
#include <time.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "outrider/text/tokenizer.h"
#include "tests/source_directory.h"

namespace outrider {
namespace {

constexpr double kRequired = 10.0;  // MB/s

// English, Markdown and code: this repository's own texts, read once (no word is met more often
// than people use it).
std::string RepositoryText() {
  std::vector<std::filesystem::path> files;
  for (const char* folder : {"src", "docs", "tests", "tools"}) {
    const std::filesystem::path root = SourceDirectory() / folder;
    if (!std::filesystem::exists(root)) continue;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root)) {
      const std::string extension = entry.path().extension();
      if (extension == ".cc" || extension == ".h" || extension == ".py" || extension == ".md") {
        files.push_back(entry.path());
      }
    }
  }
  std::sort(files.begin(), files.end());
  files.emplace_back(SourceDirectory() / "LICENSE");
  std::string text;
  for (const auto& path : files) {
    std::ifstream file(path);
    text.append(std::istreambuf_iterator<char>(file), {});
  }
  return text;
}

// Words of a made-up language of 50,000, as often as Zipf's law has them, with punctuation, numbers
// and runs of Chinese.
std::string ZipfText() {
  std::mt19937 random(1);
  const auto below = [&](size_t n) { return random() % n; };
  const std::string consonants = "bcdfghklmnprstvw";
  const std::vector<std::string> vowels = {"a", "e", "i", "o", "u", "er", "on", "ing", "ed"};
  std::vector<std::string> words(50000);
  for (std::string& word : words) {
    const size_t syllables = 1 + below(4);
    for (size_t i = 0; i < syllables; ++i) {
      word += consonants[below(consonants.size())] + vowels[below(vowels.size())];
    }
  }
  std::vector<double> weights;
  for (size_t i = 0; i < words.size(); ++i) weights.push_back(1.0 / static_cast<double>(i + 3));
  std::discrete_distribution<size_t> zipf(weights.begin(), weights.end());
  std::string text;
  while (text.size() < 2000000) {
    text += words[zipf(random)];
    const size_t kind = below(40);
    text += kind == 0 ? ".\n" : kind == 1 ? ", 12345 " : kind == 2 ? "。今天天气很好" : " ";
  }
  return text;
}

// Processor time of this thread: other work on the machine does not count.
double ThreadSeconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

double MegabytesPerSecond(const Tokenizer& tokenizer, const std::string& text) {
  double best = 0;
  for (int round = 0; round < 5; ++round) {
    const double start = ThreadSeconds();
    const size_t tokens = tokenizer.Encode(text, false).size();
    const double taken = ThreadSeconds() - start;
    EXPECT_GT(tokens, text.size() / 10);
    best = std::max(best, static_cast<double>(text.size()) / 1e6 / taken);
  }
  return best;
}

TEST(TokenizerSpeed, IsTenMegabytesPerSecondInReleaseBuilds) {
  const Tokenizer tokenizer =
      Tokenizer::FromModelDirectory(SourceDirectory() / "models/tiny-v3-mtp3");
  const std::pair<const char*, std::string> texts[] = {{"repository", RepositoryText()},
                                                       {"zipf", ZipfText()}};
  for (const auto& [name, text] : texts) {
    const double speed = MegabytesPerSecond(tokenizer, text);
    std::cout << "encode " << name << ": " << speed << " MB/s (" << text.size() << " bytes)\n";
    RecordProperty(name, std::to_string(speed));
#ifdef OUTRIDER_ASSERT_SPEED
    EXPECT_GE(speed, kRequired) << name;
#endif
  }
}

}  // namespace
}  // namespace outrider
