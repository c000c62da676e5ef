// What several formats answer alike: parts, shapes, rotation groups, scales by row, swizzled block
// scales. The checks of values that a deep check makes stand in data_checks.h.
//
// Everything works on a Layer whose parts are assigned; whatever is wrong with it goes to the sink.
// Nothing here is kept between calls; any thread may call anything.
#ifndef PARFAIT_FORMATS_COMMON_H_
#define PARFAIT_FORMATS_COMMON_H_

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/checked.h"
#include "base/floats.h"
#include "formats/format.h"

namespace parfait::formats {

std::string tensor_text(const TensorInfo& tensor);  // "F32 [3, 1]"

// --- Identify ---

// Whether no tensor has another suffix than these, "weight", "bias" and "comfy_quant".
bool has_only(const Evidence& evidence, std::initializer_list<std::string_view> suffixes);
bool is_matrix(const TensorInfo* tensor);  // two dimensions, neither of them 0
std::uint64_t value_count(const TensorInfo& tensor);

// How many weights stand in how many stored columns: {2, 1} for nibbles, {4, 3} for six bits.
struct Packing {
  std::uint64_t weights = 1, bytes = 1;
};
// Rows, columns and experts from the weight's shape: rank 2; rank 3 (experts, rows flattened); more
// (a convolution: one row for each output channel). What cannot be such a shape leaves them 0.
void settle_shape(Layer& layer, Packing packing = {});
// A bias that is shorter than the stored rows, by less than the rows that writers add, gives the
// number of outputs.
void settle_padded_rows(Layer& layer, std::uint64_t row_padding, FindingSink& sink);

// The keys beside format, full_precision_matrix_mult and num_experts that a format reads. Those
// that it does not read are noted.
struct KeysRead {
  bool convrot = false, group_size = false, quant_group_size = false, linear_dtype = false;
};
void settle_common(const Marker* marker, const KeysRead& read, Layer& layer, FindingSink& sink);
// The rotation group: `when` says whether the format always rotates or only on request.
enum class Rotates { always, if_asked };
void settle_rotation(const Marker* marker, Rotates when, Layer& layer, FindingSink& sink);
// A rotation flag on a format for which tools disagree about it.
void refuse_rotation(const Marker* marker, const Layer& layer, FindingSink& sink);
// The scale group: the marker's; where it has none, `otherwise`, with a note that says where that
// came from.
void settle_scale_group(const Marker* marker, std::uint64_t otherwise, std::string_view origin,
                        Layer& layer, FindingSink& sink);

// --- Parts ---

PartSpec bias_part();
// Written by some tools beside formats that quantise their input by what it is at run time.
PartSpec ignored_input_scale();
// F32; BF16 and F16 are taken with a warning.
PartSpec float_part(std::string_view role, std::vector<std::string_view> suffixes,
                    PartSpec::Need need);

// --- Check: each reports what it finds and tells whether all was well ---

// The weight has rows and columns; `expected` is the shape to name where it has not.
bool check_matrix(const Layer& layer, std::string_view expected, FindingSink& sink);
bool check_shape(const Layer& layer, std::string_view role,
                 std::initializer_list<std::uint64_t> expected, FindingSink& sink);
// Exactly one value, of any rank.
bool check_single(const Layer& layer, std::string_view role, FindingSink& sink);
// One value for each row, in order: [N], [N, 1], [N, 1, 1, 1], [E, N, 1]. Or one for the tensor.
enum class RowScales { each, each_or_one };
bool check_row_scales(const Layer& layer, std::string_view role, RowScales kind, FindingSink& sink);
bool check_rotation(const Layer& layer, FindingSink& sink);
// The columns are a multiple; `what` names the group in the sentence ("the packing").
bool check_columns(const Layer& layer, std::uint64_t multiple, std::string_view what,
                   FindingSink& sink);
bool check_bias(const Layer& layer, FindingSink& sink);

// Block scales in cuBLAS's 128×4 tiles: of rows × columns logical scales (one for each row and
// block of inputs), stored_rows × stored_columns are stored, not row-major in that shape.
struct BlockScales {
  std::uint64_t rows = 0, columns = 0;

  static constexpr std::uint64_t tile_rows = 128, tile_columns = 4;
  std::uint64_t stored_rows() const { return round_up(rows, tile_rows); }
  std::uint64_t stored_columns() const { return round_up(columns, tile_columns); }
  std::uint64_t stored_bytes() const;  // the largest number where it does not fit
  std::uint64_t offset(std::uint64_t row, std::uint64_t column) const {
    const std::uint64_t tile = row / tile_rows * (stored_columns() / tile_columns) + column / 4;
    return tile * (tile_rows * tile_columns) + row % 32 * 16 + row % tile_rows / 32 * 4 +
           column % 4;
  }
};
// Also where scales in linear order are known or cannot be told from swizzled ones.
bool check_block_scales(const Layer& layer, const BlockScales& scales, FindingSink& sink);

// --- Size and Decode ---

// Bytes of one value of a part; 0 where the layer has no such part.
std::uint64_t value_bytes(const Layer& layer, std::string_view role);

// The unsigned nibble of a column of packed codes, by which column of a byte stands in its low
// bits.
inline unsigned nibble_low_first(const std::byte* row, std::uint64_t column) {
  return std::to_integer<unsigned>(row[column / 2]) >> (column % 2 * 4) & 15;
}
inline unsigned nibble_high_first(const std::byte* row, std::uint64_t column) {
  return std::to_integer<unsigned>(row[column / 2]) >> ((column + 1) % 2 * 4) & 15;
}

// Code → value of an 8-bit float type.
std::span<const float, 256> float8_values(DType dtype);

// The values of a part as floats. Bytes (U8) mean what `bytes_are` says. Empty where there is no
// such part.
class Values {
 public:
  Values(const LayerData& data, std::string_view role, DType bytes_are = DType::u8);
  std::uint64_t size() const { return size_; }
  float operator[](std::uint64_t i) const {
    return table_ ? table_[std::to_integer<unsigned>(bytes_[i])]
                  : load_float(dtype_, bytes_.data(), i);
  }
  // The value of a row, where there is one for each row or one for all.
  float of_row(std::uint64_t row) const { return (*this)[size_ == 1 ? 0 : row]; }

 private:
  ByteSpan bytes_;
  DType dtype_ = DType::u8;
  const float* table_ = nullptr;
  std::uint64_t size_ = 0;
};

}  // namespace parfait::formats

#endif  // PARFAIT_FORMATS_COMMON_H_
