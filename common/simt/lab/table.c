#include <stdlib.h>

#include "internal.h"

/** An entry of an earlier round is free. */
typedef struct Entry {
  uint64_t key;
  uint32_t round, value;
} Entry;

static Entry *entry_of(const Table *table, uint64_t key) {
  for (size_t i = key * 0x9e3779b97f4a7c15 >> 32;; i++) {
    Entry *entry = &table->entries[i & (table->size - 1)];
    if (entry->round != table->round || entry->key == key) return entry;
  }
}

static void grow(Table *table) {
  const Table old = *table;
  table->size = old.size != 0 ? 2 * old.size : 256;
  table->entries = simt_zeroed(table->size, sizeof *table->entries);
  if (table->round == 0) table->round = 1;
  for (size_t i = 0; i < old.size; i++) {
    if (old.entries[i].round == old.round) *entry_of(table, old.entries[i].key) = old.entries[i];
  }
  free(old.entries);
}

uint32_t *lab_entry(Table *table, uint64_t key) {
  if (2 * table->count >= table->size) grow(table);
  Entry *entry = entry_of(table, key);
  if (entry->round != table->round) {
    *entry = (Entry){.key = key, .round = table->round};
    table->count++;
  }
  return &entry->value;
}

uint32_t lab_look_up(const Table *table, uint64_t key) {
  if (table->count == 0) return 0;
  const Entry *entry = entry_of(table, key);
  return entry->round == table->round ? entry->value : 0;
}

void lab_clear_table(Table *table) {
  table->round++;
  table->count = 0;
}

void lab_free_table(Table *table) {
  free(table->entries);
  *table = (Table){NULL, 0, 0, 0};
}
