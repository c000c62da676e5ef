// Rows that move without being decoded, in every format, on files of comfy-kitchen's.

#include "convert/kept_parts.h"

#include <filesystem>

#include "convert/convert_testing.h"

namespace parfait::convert {
namespace {

std::vector<std::byte> bytes_of(const formats::Checkpoint& source, const KeptTensor& kept) {
  if (kept.make) return *kept.make();
  std::vector<std::byte> out, scratch;
  for (const ByteRun& run : kept.runs) {
    const ByteSpan bytes = *source.index->read(*run.tensor, scratch);
    const ByteSpan part = bytes.subspan(run.offset, run.bytes);
    out.insert(out.end(), part.begin(), part.end());
  }
  return out;
}

TEST(KeptParts, halves_change_places_and_back_in_every_golden) {
  const test::TemporaryFolder folder;
  std::size_t moved = 0;
  for (const auto& entry : std::filesystem::directory_iterator(golden_path("formats"))) {
    const std::string name = entry.path().filename().string();
    if (!name.ends_with(".safetensors") || name.ends_with(".expected.safetensors")) continue;
    SCOPED_TRACE(name);
    const CheckedCheckpoint file = checked(entry.path().string());
    const formats::Checkpoint& source = *file.checkpoint().state();
    for (const formats::Layer& layer : source.layers) {
      if (layer.kind != LayerKind::linear || layer.rows < 2) continue;
      const std::uint64_t cut = layer.rows / 2;
      const Item item{"moved", {{&layer, cut, layer.rows - cut}, {&layer, 0, cut}}, nullptr};
      const auto refusal = fusing_refusal(source, item.segments);
      ASSERT_TRUE(refusal.ok());
      if (!refusal->empty()) {
        EXPECT_NE(refusal->find("padded"), std::string::npos) << *refusal;
        continue;
      }
      const auto parts = kept_parts(source, item);
      ASSERT_TRUE(parts.ok()) << parts.error().message;
      test::TestFile out;
      for (const KeptTensor& part : *parts)
        out.raw(part.declaration.name, part.declaration.dtype, part.declaration.shape,
                bytes_of(source, part));
      const std::string path = folder.write("moved.safetensors", out.bytes()).string();
      std::vector<float> before(layer.rows * layer.columns);
      ASSERT_TRUE(decode(file.checkpoint(), parfait::Layer(&layer), 0, layer.rows, before).ok());
      const std::vector<float> after = decoded(path).at("moved");
      ASSERT_EQ(after.size(), before.size());
      const std::size_t split = cut * layer.columns;
      std::size_t wrong = 0;
      for (std::size_t i = 0; i < after.size(); ++i)
        wrong += std::bit_cast<std::uint32_t>(after[i]) !=
                 std::bit_cast<std::uint32_t>(before[(i + split) % before.size()]);
      EXPECT_EQ(wrong, 0u) << layer.name;
      ++moved;
    }
  }
  EXPECT_GT(moved, 20u);
}

}  // namespace
}  // namespace parfait::convert
