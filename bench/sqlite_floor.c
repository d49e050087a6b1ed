/* The floor of a queue in SQLite: its three statements, prepared once, with nothing around them.
 *
 *     sqlite_floor FILE MESSAGES BATCH SETTINGS PUSH CLAIM ACK
 *
 * moves MESSAGES messages through push, claim and ack, BATCH in a transaction. The statements
 * and the file are those of raw_sqlite.py, so both do the same writes. Prints one line of JSON,
 * in seconds.
 */
#define _GNU_SOURCE
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

enum { BODY = 300, ID = 32, MAX_BATCH = 1000, LEASE_MS = 600000 };

static sqlite3 *database;
static sqlite3_stmt *begin, *commit, *push_one, *claim_some, *ack_one;
static char body[BODY];
static sqlite3_int64 claimed[MAX_BATCH], fences[MAX_BATCH];

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double cpu(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec)
         + (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

static sqlite3_int64 now_ms(void) { return (sqlite3_int64)(now() * 1000); }

static void must(int ok, const char *what) {
    if (ok) return;
    fprintf(stderr, "sqlite_floor: %s: %s\n", what, sqlite3_errmsg(database));
    exit(1);
}

static sqlite3_stmt *prepare(const char *statement) {
    sqlite3_stmt *prepared;
    must(sqlite3_prepare_v3(database, statement, -1, SQLITE_PREPARE_PERSISTENT, &prepared, NULL)
         == SQLITE_OK, statement);
    return prepared;
}

static void run(sqlite3_stmt *statement) {
    must(sqlite3_step(statement) == SQLITE_DONE, sqlite3_sql(statement));
    sqlite3_reset(statement);
}

/* A single statement is a transaction of its own. */
static void run_batch(int batch, void (*step)(int)) {
    if (batch > 1) run(begin);
    for (int i = 0; i < batch; i++) step(i);
    if (batch > 1) run(commit);
}

static void push(int i) {
    char id[ID + 1];
    snprintf(id, sizeof id, "%032x", (unsigned)i);
    sqlite3_bind_int64(push_one, 1, now_ms());
    sqlite3_bind_text(push_one, 2, id, ID, SQLITE_TRANSIENT);
    sqlite3_bind_text(push_one, 3, body, BODY, SQLITE_STATIC);
    run(push_one);
}

static void claim(int batch) {
    int count = 0;
    char buffer[BODY];
    sqlite3_bind_int64(claim_some, 1, now_ms());
    sqlite3_bind_int64(claim_some, 2, now_ms() + LEASE_MS);
    sqlite3_bind_int64(claim_some, 3, batch);
    while (sqlite3_step(claim_some) == SQLITE_ROW) {
        claimed[count] = sqlite3_column_int64(claim_some, 0);
        fences[count++] = sqlite3_column_int64(claim_some, 1);
        memcpy(buffer, sqlite3_column_blob(claim_some, 3), BODY);
    }
    must(sqlite3_reset(claim_some) == SQLITE_OK && count == batch, "claim");
}

static void ack(int i) {
    sqlite3_bind_int64(ack_one, 1, now_ms());
    sqlite3_bind_int64(ack_one, 2, claimed[i]);
    sqlite3_bind_int64(ack_one, 3, fences[i]);
    run(ack_one);
    must(sqlite3_changes(database) == 1, "ack");
}

static void cycle(int messages, int batch) {
    double pushing = 0, claiming = 0, completing = 0;
    double used = cpu(), start = now(), at = start;
    for (int i = 0; i < messages; i += batch) {
        double t0 = at, t1, t2;
        run_batch(batch, push);
        t1 = now();
        claim(batch);
        t2 = now();
        run_batch(batch, ack);
        at = now();
        pushing += t1 - t0, claiming += t2 - t1, completing += at - t2;
    }
    printf("{\"cycles\": %d, \"seconds\": %.9f, \"push\": %.9f, \"claim\": %.9f, "
           "\"done\": %.9f, \"cpu\": %.9f}\n",
           messages, at - start, pushing, claiming, completing, cpu() - used);
}

int main(int count, char **arguments) {
    int batch = count == 8 ? atoi(arguments[3]) : 0;
    if (batch < 1 || batch > MAX_BATCH) {
        fprintf(stderr, "usage: sqlite_floor FILE MESSAGES BATCH SETTINGS PUSH CLAIM ACK\n");
        return 2;
    }
    memset(body, 'x', BODY);
    must(sqlite3_open(arguments[1], &database) == SQLITE_OK, "open");
    must(sqlite3_exec(database, arguments[4], NULL, NULL, NULL) == SQLITE_OK, "settings");
    begin = prepare("BEGIN IMMEDIATE");
    commit = prepare("COMMIT");
    push_one = prepare(arguments[5]);
    claim_some = prepare(arguments[6]);
    ack_one = prepare(arguments[7]);
    cycle(atoi(arguments[2]), batch);
    return 0;
}
