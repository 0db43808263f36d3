/* Tensor copies: both of their sides, and their traffic. */
#include "internal.h"

static void count_row(LabTraffic *traffic, uintptr_t address, size_t bytes) {
  if (bytes == 0) return;
  const uintptr_t first = address / SECTOR_BYTES, last = (address + bytes - 1) / SECTOR_BYTES;
  traffic->bytes += bytes;
  traffic->used_bytes += bytes;
  traffic->sectors += last - first + 1;
}

/** The side in global memory. */
static void use_tensor(LabWorker *lab, const TensorCopy *copy, uint32_t pc) {
  const bool load = copy->barrier >= 0;
  LabTraffic own = {.requests = 1};
  uintptr_t address;
  size_t bytes;
  lab->reading_barrier = copy->barrier;
  for (unsigned row = 0; simt_box_row(copy, row, &address, &bytes); row++) {
    count_row(&own, address, bytes);
    for (size_t at = 0; at < bytes; at += COPY_BYTES) {
      const size_t left = bytes - at;
      lab_check_global(lab, address + at, left < COPY_BYTES ? (unsigned)left : COPY_BYTES,
                       load         ? TENSOR_READS
                       : copy->adds ? ADDS_FLOATS
                                    : WRITES,
                       pc);
    }
  }
  LabCounts *counts = lab_counts(&lab->sites, pc);
  if (copy->adds) counts->atomics += copy->bytes / sizeof(float);
  if (!(lab->checks & LAB_TRAFFIC) || copy->adds) return;
  if (load) counts->box_sectors += copy->bytes / SECTOR_BYTES;
  own.most_sectors = (uint32_t)own.sectors;
  lab_add_traffic(load ? &counts->tensor_load : &counts->tensor_store, &own);
}

/** The side in shared memory of the issuing block, of a copy to another one. */
static void use_source(LabWorker *lab, const TensorCopy *copy, uint32_t pc) {
  if (lab->checks & LAB_BANKS && copy->has_data) {
    lab_log(lab, LAB_REMOTE_STORE, copy->shared, copy->bytes, pc, 0);
  } else if (lab->checks & LAB_BANKS) {
    LabTraffic *sum = &lab_counts(&lab->sites, pc)->remote_store;
    const uint32_t sectors = (copy->bytes + SECTOR_BYTES - 1) / SECTOR_BYTES;
    lab_add_traffic(sum, &(LabTraffic){.requests = 1,
                                       .bytes = copy->bytes,
                                       .sectors = sectors,
                                       .used_bytes = copy->bytes,
                                       .most_sectors = sectors});
  }
  for (unsigned at = 0; at < copy->bytes && !copy->has_data; at += COPY_BYTES) {
    lab_check_shared(lab, copy->map.address + at, COPY_BYTES, READS_AS_PROXY, pc);
    lab_begin_async_read(lab, copy->map.address + at, pc);
  }
}

/** The bytes of a piece of COPY_BYTES, of which st.async may have fewer. */
static unsigned piece_bytes(const TensorCopy *copy) {
  return copy->bytes < COPY_BYTES ? copy->bytes : COPY_BYTES;
}

void lab_tensor_copy_issued(const TensorCopy *copy) {
  LabWorker *lab = lab_worker;
  lab_hopper(lab);
  const uint32_t pc = lab_pc(copy->call_site);
  const bool load = copy->barrier >= 0;
  if (copy->between) {
    use_source(lab, copy, pc);
  } else if (!copy->repeats) {
    use_tensor(lab, copy, pc);
  }
  for (unsigned at = 0; at < copy->bytes; at += COPY_BYTES) {
    const uintptr_t address = copy->shared + at;
    lab_check_shared(lab, address, piece_bytes(copy), load ? TENSOR_COPIES : READS_AS_PROXY, pc);
    if (!load) lab_begin_async_read(lab, address, pc);
  }
}

void lab_tensor_copy_landed(const TensorCopy *copy) {
  LabWorker *lab = lab_worker;
  const uint32_t pc = lab_pc(copy->call_site);
  for (unsigned at = 0; at < copy->bytes; at += COPY_BYTES) {
    const uintptr_t address = copy->shared + at;
    if (copy->barrier < 0) {
      lab_async_reads(lab, address)->under_way--;
      /* From its wait on, it counts as a read that its thread makes at that point. */
      lab_check_shared(lab, address, COPY_BYTES, READS, pc);
      continue;
    }
    if (lab->checks & (LAB_RACES | LAB_INIT)) {
      lab_copy_arrived(copy->target->lab, address, copy->thread, copy->barrier, pc);
    }
    if (copy->between && !copy->has_data) {
      lab_async_reads(copy->issuer->lab, copy->map.address + at)->under_way--;
    }
  }
}

void lab_proxy_fence(bool of_cluster) {
  LabHopper *hopper = lab_hopper(lab_worker);
  const int warp = lab_thread(lab_worker) / WARP_SIZE;
  hopper->proxy_fences[warp]++;
  hopper->cluster_fences[warp] += of_cluster;
}
