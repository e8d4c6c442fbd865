// How one field's part of one sample is made from what is stored.
#pragma once

#include <memory>
#include <span>

#include "exec/data/data_files.h"
#include "exec/data/data_split.h"

namespace shardrun {

/// Where a sample stands: what random augmentation is drawn for.
struct SamplePlace {
  int64_t sample = 0;
  Split split = Split::training;
  int64_t position = 0;  // in the stream of all training batches: another one each epoch
};

class SampleReader {
 public:
  virtual ~SampleReader() = default;
  /// Writes `box` (of the field's dims but the first) of the sample to `out`, dense, in the
  /// field's dtype.
  virtual void read(const SamplePlace& place, std::span<const Range> box, void* out) const = 0;
};

/// As stored, converted.
std::unique_ptr<SampleReader> plain_reader(const Samples& samples, const BatchField& field);
/// Each row is divided by its sum; the field is [samples, values].
std::unique_ptr<SampleReader> row_reader(const Samples& samples, const BatchField& field);

/// Images [samples, channels, height, width], cropped, flipped and scaled as the options say.
/// Bytes become numbers from 0 to 1 first. The random numbers are of (seed, position), so that a
/// sample is augmented alike whoever reads which part of it. Throws invalid_input for options that
/// do not fit the field.
std::unique_ptr<SampleReader> image_reader(const Samples& samples, const BatchField& field,
                                           const SampleSplit& split, const DataOptions& options);

/// What options.normalise asks for.
bool normalises_rows(const DataOptions& options);
bool changes_images(const DataOptions& options);  // augments them or scales their channels
/// Throws invalid_input if an option cannot be read.
void check_transforms(const DataOptions& options);
/// Floating images [samples, channels, height, width]; floating inputs [samples, values].
bool takes_images(const BatchField& field);
bool takes_rows(const BatchField& field);
/// Throws invalid_input if no field takes what options.augment and options.normalise ask for.
void check_transforms(const std::string& spec, const std::vector<BatchField>& fields,
                      const DataOptions& options);

}  // namespace shardrun
