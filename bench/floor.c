/* The floor: the bare system calls of one queue cycle, with nothing around them.
 *
 *     floor fill DIR COUNT           COUNT waiting files, in segments of 2,000
 *     floor cycle DIR CYCLES FROM TO runs CYCLES times: write number TO under a temporary
 *                                    name, publish by rename; claim number FROM by rename,
 *                                    read, complete by rename; then the next numbers
 *
 * Names are as long as Holdfast's. `cycle` prints one line of JSON, in seconds.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { SEGMENT = 2000, BODY = 300, NAME = 160 };

static int root;
static char body[BODY];

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void must(int ok, const char *what) {
    if (ok) return;
    fprintf(stderr, "floor: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void pending_name(char *name, int i) {
    snprintf(name, NAME, "pending/1763237639123-abcdef-%06d/%018d~0~1763237639123.json",
             i / SEGMENT, i);
}

static void push(int i) {
    char temporary[NAME], name[NAME];
    snprintf(temporary, NAME, "pending/1763237639123-abcdef-%06d", i / SEGMENT);
    if (i % SEGMENT == 0)
        must(mkdirat(root, temporary, 0777) == 0, "mkdir segment");
    snprintf(temporary, NAME, "pending/1763237639123-abcdef-%06d/.%018d", i / SEGMENT, i);
    pending_name(name, i);
    int file = openat(root, temporary, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666);
    must(file >= 0, "create");
    must(write(file, body, BODY) == BODY, "write");
    must(close(file) == 0, "close");
    must(renameat(root, temporary, root, name) == 0, "publish");
}

static void leased_name(char *name, int i) {
    snprintf(name, NAME, "leased/%018d~1~abcdefgh~mhzk3abc+goxc.json", i);
}

static void claim(int i) {
    char name[NAME], leased[NAME], buffer[4096];
    pending_name(name, i);
    leased_name(leased, i);
    must(renameat(root, name, root, leased) == 0, "claim");
    int file = openat(root, leased, O_RDONLY | O_CLOEXEC);
    must(file >= 0, "open");
    must(read(file, buffer, sizeof buffer) == BODY, "read");
    must(close(file) == 0, "close");
}

static void complete(int i) {
    char leased[NAME], completed[NAME];
    leased_name(leased, i);
    snprintf(completed, NAME, "completed/2026-11-15T20/%018d~1~abcdefgh.json", i);
    must(renameat(root, leased, root, completed) == 0, "complete");
}

static void make_folders(void) {
    const char *folders[] = {"pending", "leased", "completed", "completed/2026-11-15T20"};
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++)
        must(mkdirat(root, folders[i], 0777) == 0, "mkdir");
}

static void cycle(int cycles, int from, int to) {
    double pushing = 0, claiming = 0, completing = 0, start = now(), at = start;
    for (int i = 0; i < cycles; i++) {
        double t0 = at, t1, t2;
        push(to + i);
        t1 = now();
        claim(from + i);
        t2 = now();
        complete(from + i);
        at = now();
        pushing += t1 - t0, claiming += t2 - t1, completing += at - t2;
    }
    printf("{\"cycles\": %d, \"seconds\": %.9f, \"push\": %.9f, \"claim\": %.9f, "
           "\"done\": %.9f}\n", cycles, at - start, pushing, claiming, completing);
}

int main(int count, char **arguments) {
    int filling = count == 4 && strcmp(arguments[1], "fill") == 0;
    if (!filling && !(count == 6 && strcmp(arguments[1], "cycle") == 0)) {
        fprintf(stderr, "usage: floor fill DIR COUNT | floor cycle DIR CYCLES FROM TO\n");
        return 2;
    }
    memset(body, 'x', BODY);
    root = open(arguments[2], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    must(root >= 0, "open folder");
    if (!filling) {
        cycle(atoi(arguments[3]), atoi(arguments[4]), atoi(arguments[5]));
        return 0;
    }
    make_folders();
    for (int i = 0; i < atoi(arguments[3]); i++) push(i);
    return 0;
}
