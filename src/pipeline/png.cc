#include "pipeline/png.h"

#include <png.h>

#include <algorithm>
#include <csetjmp>

#include "base/result.h"

namespace parfait::pipeline {
namespace {

void append(png_structp png, png_bytep data, png_size_t size) {
  auto& out = *static_cast<std::vector<std::byte>*>(png_get_io_ptr(png));
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  out.insert(out.end(), bytes, bytes + size);
}
void flush(png_structp) {}
void keep_quiet(png_structp, png_const_charp) {}
[[noreturn]] void leave(png_structp png, png_const_charp) { png_longjmp(png, 1); }

bool is_ascii(const std::string& text) {
  return std::ranges::all_of(text, [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

// Everything between setjmp and its longjmp: no object with a destructor may begin in here.
bool write_all(png_structp png, png_infop info, const Picture& picture, png_textp texts, int count,
               std::vector<std::byte>& out) {
  if (setjmp(png_jmpbuf(png))) return false;
  png_set_write_fn(png, &out, append, flush);
  png_set_IHDR(png, info, static_cast<png_uint_32>(picture.width),
               static_cast<png_uint_32>(picture.height), 8, PNG_COLOR_TYPE_RGB, PNG_INTERLACE_NONE,
               PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  if (count) png_set_text(png, info, texts, count);
  png_write_info(png, info);
  for (std::uint64_t y = 0; y < picture.height; ++y)
    png_write_row(png, picture.rgb.data() + y * picture.width * 3);
  png_write_end(png, info);
  return true;
}

}  // namespace

Result<std::vector<std::byte>> encode_png(
    const Picture& picture, std::span<const std::pair<std::string, std::string>> texts) {
  constexpr std::uint64_t largest = 1 << 20;
  if (picture.width == 0 || picture.height == 0 || picture.width > largest ||
      picture.height > largest || picture.rgb.size() != picture.width * picture.height * 3)
    return make_error(ErrorCode::run_shape, "a picture of {} × {} with {} bytes is none",
                      picture.width, picture.height, picture.rgb.size());
  std::vector<png_text> chunks;
  for (const auto& [keyword, text] : texts) {
    png_text chunk{};
    chunk.compression = is_ascii(text) ? PNG_TEXT_COMPRESSION_NONE : PNG_ITXT_COMPRESSION_NONE;
    chunk.key = const_cast<char*>(keyword.c_str());
    chunk.text = const_cast<char*>(text.c_str());
    chunk.text_length = text.size();
    chunks.push_back(chunk);
  }
  std::vector<std::byte> out;
  out.reserve(picture.rgb.size() / 2);
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, leave, keep_quiet);
  png_infop info = png ? png_create_info_struct(png) : nullptr;
  const bool written =
      info && write_all(png, info, picture, chunks.data(), static_cast<int>(chunks.size()), out);
  png_destroy_write_struct(&png, &info);
  if (!written) return make_error(ErrorCode::out_of_memory, "the picture could not be packed");
  return out;
}

}  // namespace parfait::pipeline
