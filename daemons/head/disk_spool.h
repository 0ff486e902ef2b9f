// DiskSpool: a spool of files without names, in the folder for temporary files; they are gone with
// the last who refers to them, however the process ends.
// Thread: owner only. Blocks as the disk does.
#pragma once

#include "daemons/head/core/spool.h"

namespace troupe::daemons {

class DiskSpool final : public Spool {
 public:
  [[nodiscard]] Result<std::shared_ptr<SpoolFile>> Create() override;
};

}  // namespace troupe::daemons
