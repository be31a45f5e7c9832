/* What a #commit frame proves by itself, compiled: firehose/verify/proven.py in C, from bytes to a verdict's facts.
 *
 * Form, archive, hashes, commit, ops, records, and that undoing the ops gives the tree before; all but the
 * signature, of which the bytes are given. No value is made on the way. What is not as it must be, or
 * not as nearly every server writes it, fails: then the twin says what is wrong, or that nothing is. */
#ifndef FIREHOSE_PROOF_H
#define FIREHOSE_PROOF_H

#define MAX_OPS 200                /* as firehose.frames.MAX_COMMIT_OPS; a test holds all of these equal */
#define MAX_BLOCKS_BYTES 2000000   /* as firehose.car */
#define MAX_RECORD_BYTES 1000000   /* as firehose.repo */
#define MAX_COMMIT_BYTES 4096      /* as firehose.commit */
#define MAX_DID_BYTES 2048         /* as firehose.syntax */
#define MAX_NSID_BYTES 317         /* as firehose.syntax */
#define DENSE_BYTES (1 << 16)      /* as firehose.drisl: whether larger ones are sparse, the twin says */
#define MAX_PROOF_BLOCKS (1 << 12) /* hostile CIDs make the search for blocks quadratic; 200 ops take 1,000 */

static const uint8_t COMMIT_HEADER[] = {0xa2, 0x61, 't',  0x67, '#', 'c', 'o', 'm',
                                        'm',  'i',  't',  0x62, 'o', 'p', 0x01};
typedef struct {
    const uint8_t *did, *rev, *since, *commit, *prev_data, *blocks;
    int64_t did_bytes, blocks_bytes, seq;
    Step ops[MAX_OPS];
    int count;
} Claim;

/* Text ---------------------------------------------------------------------------------------------------- */

static int is_letter(uint8_t c) { return (uint8_t)((c | 0x20) - 'a') < 26; }
static int is_digit(uint8_t c) { return (uint8_t)(c - '0') < 10; }
static int is_alnum(uint8_t c) { return is_letter(c) || is_digit(c); }

/* A did:plc or did:web. */
static int is_did(const uint8_t *p, int64_t size) {
    int64_t i;
    if (size < 9 || size > MAX_DID_BYTES || (memcmp(p, "did:plc:", 8) && memcmp(p, "did:web:", 8))) return 0;
    for (i = 8; i < size; i++)
        if (!is_alnum(p[i]) && p[i] != '.' && p[i] != '_' && p[i] != ':' && p[i] != '%' && p[i] != '-') return 0;
    return p[size - 1] != ':' && p[size - 1] != '%';
}

/* The time in a TID, in microseconds; -1: it is none. */
static int64_t tid_micros(const uint8_t *p, int64_t size) {
    uint64_t number = 0;
    int i;
    if (size != 13 || p[0] > 'j') return -1;
    for (i = 0; i < 13; i++) {
        int value = p[i] >= 'a' && p[i] <= 'z' ? p[i] - 'a' + 6 : p[i] >= '2' && p[i] <= '7' ? p[i] - '2' : -1;
        if (value < 0) return -1;
        number = number << 5 | (uint64_t)value;
    }
    return (int64_t)(number >> 10);
}

static int is_label(const uint8_t *p, int64_t size) {
    int64_t i;
    if (size < 1 || size > 63 || p[0] == '-' || p[size - 1] == '-') return 0;
    for (i = 0; i < size; i++)
        if (!is_alnum(p[i]) && p[i] != '-') return 0;
    return 1;
}

/* A collection's NSID, a slash, and a record key. */
static int is_path(const uint8_t *p, int64_t size) {
    const uint8_t *slash = memchr(p, '/', (size_t)size), *end = p + size, *label = p;
    int64_t i, key_bytes;
    int labels = 0;
    if (!slash || slash - p > MAX_NSID_BYTES || size > MAX_KEY_BYTES || !is_letter(*p)) return 0;
    for (i = 0; p + i <= slash; i++) {
        if (p + i < slash && p[i] != '.') continue;
        if (!is_label(label, p + i - label)) return 0;
        labels++;
        if (p + i < slash) label = p + i + 1;
    }
    if (labels < 3 || !is_letter(*label) || memchr(label, '-', (size_t)(slash - label))) return 0;
    p = slash + 1, key_bytes = end - p;
    if (key_bytes < 1 || key_bytes > 512 || (p[0] == '.' && (key_bytes == 1 || (key_bytes == 2 && p[1] == '.')))) return 0;
    for (; p < end; p++)
        if (!is_alnum(*p) && *p != '.' && *p != '_' && *p != '~' && *p != ':' && *p != '-') return 0;
    return 1;
}

static int is_utf8(const uint8_t *p, const uint8_t *end) {
    while (p < end) {
        uint8_t c = *p++, low = 0x80, high = 0xbf;
        int more;
        if (c < 0x80) continue;
        if (c < 0xc2 || c > 0xf4) return 0;
        more = c < 0xe0 ? 1 : c < 0xf0 ? 2 : 3;
        if (end - p < more) return 0;
        if (c == 0xe0) low = 0xa0; /* longer than necessary */
        if (c == 0xed) high = 0x9f; /* a surrogate */
        if (c == 0xf0) low = 0x90;
        if (c == 0xf4) high = 0x8f; /* beyond Unicode */
        if (*p < low || *p > high) return 0;
        for (p++; --more; p++)
            if (*p >> 6 != 2) return 0;
    }
    return 1;
}

/* Values: as `read_value`, but none is made ---------------------------------------------------------------- */

static int skip_value(Reader *reader, int depth);

static int skip_map(Reader *reader, uint64_t number, int depth) {
    const uint8_t *before = NULL;
    uint64_t size, before_size = 0;
    if (depth <= 0 || number > (uint64_t)(reader->end - reader->p)) return 0;
    for (; number; number--) {
        int info, order;
        if (reader->p >= reader->end || *reader->p >> 5 != 3) return 0;
        info = *reader->p++ & 31;
        if (!read_argument(reader, info, &size) || size > (uint64_t)(reader->end - reader->p)) return 0;
        order = !before || before_size < size ? -1 : before_size > size ? 1 : memcmp(before, reader->p, size);
        if (order >= 0 || !is_utf8(reader->p, reader->p + size)) return 0;
        before = reader->p, before_size = size;
        reader->p += size;
        if (!skip_value(reader, depth - 1)) return 0;
    }
    return 1;
}

static int skip_simple(Reader *reader, int info) {
    if (info >= 20 && info <= 22) return 1;
    if (info != 27 || reader->end - reader->p < 8 || !isfinite(PyFloat_Unpack8((const char *)reader->p, 0))) return 0;
    reader->p += 8;
    return 1;
}

static int skip_value(Reader *reader, int depth) {
    int major, info;
    uint64_t number;
    if (reader->p >= reader->end) return 0;
    major = *reader->p >> 5, info = *reader->p++ & 31;
    if (major == 7) return skip_simple(reader, info);
    if (major == 6) {
        if (info != 24 || reader->end - reader->p < 4 + CID || memcmp(reader->p, LINK + 1, 4)) return 0;
        reader->p += 4 + CID;
        return is_cid(reader->p - CID);
    }
    if (!read_argument(reader, info, &number)) return 0;
    if (major == 0) return 1;
    if (major == 1) return !(number >> 63);
    if (major == 5) return skip_map(reader, number, depth);
    if (major == 4) {
        if (depth <= 0 || number > (uint64_t)(reader->end - reader->p)) return 0;
        for (; number; number--)
            if (!skip_value(reader, depth - 1)) return 0;
        return 1;
    }
    if (number > (uint64_t)(reader->end - reader->p)) return 0;
    reader->p += number;
    return major == 2 || is_utf8(reader->p - number, reader->p);
}

static int is_record(const Block *block) {
    Reader reader = {block->bytes, block->bytes + block->size, NULL};
    if (block->size > DENSE_BYTES || block->size > MAX_RECORD_BYTES || !block->size || *block->bytes >> 5 != 5) return 0;
    return skip_value(&reader, MAX_DEPTH) && reader.p == reader.end;
}

/* What the frame claims ------------------------------------------------------------------------------------ */

static int read_any_link(const uint8_t **p, const uint8_t *end, const uint8_t **cid, int may_be_null) {
    *cid = NULL;
    if (may_be_null && *p < end && **p == 0xf6) {
        (*p)++;
        return 1;
    }
    if (end - *p < 5 + CID || memcmp(*p, LINK, 5) || !is_cid(*p + 5)) return 0;
    *cid = *p + 5;
    *p += 5 + CID;
    return 1;
}

static int read_op(const uint8_t **p, const uint8_t *end, Step *step) {
    const uint8_t *action;
    int64_t size;
    int has_prev;
    if (*p >= end || (**p != 0xa3 && **p != 0xa4)) return 0;
    has_prev = *(*p)++ == 0xa4;
    if (!read_name(p, end, "cid") || !read_any_link(p, end, &step->cid, 1)) return 0;
    if (!read_name(p, end, "path") || !(step->key = read_string(p, end, 3, &size)) || !is_path(step->key, size)) return 0;
    step->size = (uint32_t)size, step->prev = NULL;
    if (has_prev && (!read_name(p, end, "prev") || !read_any_link(p, end, &step->prev, 1))) return 0;
    if (!read_name(p, end, "action") || !(action = read_string(p, end, 3, &size)) || size != 6) return 0;
    if (!memcmp(action, "create", 6)) return step->cid && !step->prev;
    if (!memcmp(action, "update", 6)) return step->cid && step->prev;
    return !memcmp(action, "delete", 6) && !step->cid && step->prev;
}

static int read_ops(const uint8_t **p, const uint8_t *end, Claim *claim) {
    int64_t count = read_head(p, end, 4);
    if (count < 0 || count > MAX_OPS) return 0;
    for (claim->count = 0; claim->count < count; claim->count++)
        if (!read_op(p, end, &claim->ops[claim->count])) return 0;
    return 1;
}

static int read_seq(const uint8_t **p, const uint8_t *end, int64_t *seq) {
    Reader reader = {*p, end, NULL};
    uint64_t number;
    int info;
    if (reader.p >= end || *reader.p >> 5) return 0;
    info = *reader.p++ & 31;
    if (!read_argument(&reader, info, &number) || !number || number >> 53) return 0;
    *seq = (int64_t)number, *p = reader.p;
    return 1;
}

/* Fields that are there for older readers, and count only for the number of fields. */
static int skip_flag(const uint8_t **p, const uint8_t *end, const char *name) {
    if (!read_name(p, end, name)) return 0;
    if (*p >= end || (**p != 0xf4 && **p != 0xf5)) return 0;
    (*p)++;
    return 1;
}

static int skip_blobs(const uint8_t **p, const uint8_t *end) {
    int64_t count;
    const uint8_t *cid;
    if (!read_name(p, end, "blobs")) return 0;
    for (count = read_head(p, end, 4); count > 0; count--)
        if (!read_any_link(p, end, &cid, 0)) return 0;
    return !count;
}

/* The fields in their order, all of which nearly every server writes. */
static int read_claim(const uint8_t *p, const uint8_t *end, Claim *claim) {
    int64_t size;
    int fields = 0;
    if ((size_t)(end - p) <= sizeof COMMIT_HEADER || memcmp(p, COMMIT_HEADER, sizeof COMMIT_HEADER)) return 0;
    p += sizeof COMMIT_HEADER;
    fields = *p++ - 0xa0;
    if (!read_name(&p, end, "ops") || !read_ops(&p, end, claim)) return 0;
    if (!read_name(&p, end, "rev") || !(claim->rev = read_string(&p, end, 3, &size)) || size != 13) return 0;
    if (!read_name(&p, end, "seq") || !read_seq(&p, end, &claim->seq)) return 0;
    if (!read_name(&p, end, "repo") || !(claim->did = read_string(&p, end, 3, &claim->did_bytes))) return 0;
    if (!read_name(&p, end, "time") || !read_string(&p, end, 3, &size)) return 0;
    fields -= skip_blobs(&p, end);
    if (!read_name(&p, end, "since")) return 0;
    claim->since = NULL;
    if (p < end && *p == 0xf6) p++;
    else if (!(claim->since = read_string(&p, end, 3, &size)) || tid_micros(claim->since, size) < 0) return 0;
    if (!read_name(&p, end, "blocks") || !(claim->blocks = read_string(&p, end, 2, &claim->blocks_bytes))) return 0;
    if (!read_name(&p, end, "commit") || !read_any_link(&p, end, &claim->commit, 0)) return 0;
    fields -= skip_flag(&p, end, "rebase");
    fields -= skip_flag(&p, end, "tooBig");
    if (!read_name(&p, end, "prevData") || !read_any_link(&p, end, &claim->prev_data, 0)) return 0;
    return fields == 9 && p == end && claim->blocks_bytes <= MAX_BLOCKS_BYTES && is_did(claim->did, claim->did_bytes);
}

/* What it proves ------------------------------------------------------------------------------------------- */

/* Every block of the archive by its CID, hashed or as they are; 0: one is wrong, or it is too many. */
static int read_blocks(Work *work, const uint8_t *first, const uint8_t *end, Index *index, int is_hashed) {
    const uint8_t *p = first;
    uint32_t count = 0, room = 16;
    Block block;
    for (; p < end; count++)
        if (count >= MAX_PROOF_BLOCKS || !next_block(&p, end, &block)) return 0;
    while (room < 2 * count) room *= 2;
    if (!(index->slots = take(work, sizeof(Block) * room))) return 0;
    memset(index->slots, 0, sizeof(Block) * room);
    index->mask = room - 1;
    for (p = first; p < end;) {
        if (!next_block(&p, end, &block) || (is_hashed && !hashes_to(block.bytes, block.size, block.cid))) return 0;
        *slot_of(index, block.cid) = block;
    }
    work->index = index;
    return 1;
}

/* The archive's root, after all of its blocks; NULL: it is not as it must be. */
static const uint8_t *read_archive(Work *work, const Claim *claim, Index *index) {
    const uint8_t *p = claim->blocks, *end = p + claim->blocks_bytes, *root = read_root(&p, end);
    if (!root || memcmp(root, claim->commit, CID)) return NULL;
    return read_blocks(work, p, end, index, 1) ? root : NULL;
}

static int by_path(const void *one, const void *other) {
    const Step *a = one, *b = other;
    return compare(a->key, a->size, b->key, b->size);
}

/* Whether undoing the ops gives the tree before: deletions first, each kind by path, no path twice. */
static int undoes(Work *work, Claim *claim, const uint8_t *data) {
    Link top = {data, NULL};
    const uint8_t *root;
    int i, with_cid;
    if (claim->count > 1) qsort(claim->ops, (size_t)claim->count, sizeof(Step), by_path);
    for (i = 1; i < claim->count; i++)
        if (!by_path(&claim->ops[i - 1], &claim->ops[i])) return 0;
    for (with_cid = 0; with_cid <= 1; with_cid++)
        for (i = 0; i < claim->count; i++)
            if ((claim->ops[i].cid != NULL) == with_cid && !undo_one(work, &top, &claim->ops[i])) return 0;
    root = cid_of(work, &top);
    return root && !memcmp(root, claim->prev_data, CID);
}

static int has_records(const Work *work, const Claim *claim) {
    int i;
    for (i = 0; i < claim->count; i++) {
        const Block *block = claim->ops[i].cid ? slot_of(work->index, claim->ops[i].cid) : NULL;
        if (block && (!block->cid || !is_record(block))) return 0;
    }
    return 1;
}

static int is_proven(Work *work, Claim *claim, Index *index, Commit *commit, uint8_t digest[32]) {
    uint8_t signed_part[MAX_COMMIT_BYTES];
    const uint8_t *root = read_archive(work, claim, index);
    const Block *block = root ? slot_of(index, root) : NULL;
    if (!block || !block->cid || block->size > MAX_COMMIT_BYTES) return 0;
    if (!read_commit(block->bytes, block->bytes + block->size, commit) || commit->sig_size != 64) return 0;
    if (commit->did_size != claim->did_bytes || memcmp(commit->did, claim->did, (size_t)claim->did_bytes)) return 0;
    if (commit->rev_size != 13 || memcmp(commit->rev, claim->rev, 13)) return 0;
    write_signed(commit, block->bytes, block->size, signed_part);
    sha256(signed_part, signed_bytes(commit, block->size), digest);
    return has_records(work, claim) && undoes(work, claim, commit->data);
}

static PyObject *prove(PyObject *self, PyObject *frame) {
    Work work = {NULL, NULL, NULL, 0, 0, 0};
    const uint8_t *start;
    uint8_t digest[32];
    Claim claim;
    Commit commit;
    Index index;
    PyObject *proof = NULL;
    int64_t micros;
    (void)self;
    if (!PyBytes_Check(frame)) {
        PyErr_SetString(PyExc_TypeError, "prove(frame: bytes)");
        return NULL;
    }
    start = (const uint8_t *)PyBytes_AS_STRING(frame);
    if (read_claim(start, start + PyBytes_GET_SIZE(frame), &claim) && (micros = tid_micros(claim.rev, 13)) >= 0 &&
        is_proven(&work, &claim, &index, &commit, digest))
        proof = Py_BuildValue("(Ls#s#Lz#y#y#y#y#)", (long long)claim.seq, claim.did, (Py_ssize_t)claim.did_bytes, claim.rev,
                              (Py_ssize_t)13, (long long)micros, claim.since, (Py_ssize_t)13, claim.prev_data,
                              (Py_ssize_t)CID, commit.data, (Py_ssize_t)CID, commit.sig, (Py_ssize_t)64, digest,
                              (Py_ssize_t)32);
    drop(&work);
    if (proof || PyErr_Occurred()) return proof;
    Py_RETURN_NONE;
}

/* author(frame): whose #commit it is, if it is one; nothing else of it is looked at. */
static PyObject *author(PyObject *self, PyObject *frame) {
    const uint8_t *p, *end, *did;
    int64_t size;
    (void)self;
    if (!PyBytes_Check(frame)) {
        PyErr_SetString(PyExc_TypeError, "author(frame: bytes)");
        return NULL;
    }
    p = (const uint8_t *)PyBytes_AS_STRING(frame);
    end = p + PyBytes_GET_SIZE(frame);
    if ((size_t)(end - p) <= sizeof COMMIT_HEADER + 1 || memcmp(p, COMMIT_HEADER, sizeof COMMIT_HEADER)) Py_RETURN_NONE;
    p += sizeof COMMIT_HEADER + 1;
    if (read_name(&p, end, "ops")) {
        Reader reader = {p, end, NULL};
        if (!skip_value(&reader, MAX_DEPTH)) Py_RETURN_NONE;
        p = reader.p;
        if (read_name(&p, end, "rev") && read_string(&p, end, 3, &size) && read_name(&p, end, "seq") &&
            read_seq(&p, end, &size) && read_name(&p, end, "repo") && (did = read_string(&p, end, 3, &size)) &&
            is_did(did, size))
            return PyUnicode_FromStringAndSize((const char *)did, (Py_ssize_t)size);
    }
    Py_RETURN_NONE;
}

static PyObject *read_block(const Index *index, PyObject *cid, PyObject *cid_type) {
    Reader reader = {NULL, NULL, cid_type};
    const uint8_t *name;
    const Block *block;
    PyObject *value;
    if (cid_in(cid, &name) || !name || !(block = slot_of(index, name))->cid) return NULL;
    reader.p = block->bytes, reader.end = block->bytes + block->size;
    value = read_value(&reader, MAX_DEPTH);
    if (value && reader.p != reader.end) Py_CLEAR(value);
    return value;
}

/* records(archive, cids, Cid): what was proved before is read out of it; it is not hashed again. */
static PyObject *records(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    Work work = {NULL, NULL, NULL, 0, 0, 0};
    const uint8_t *p, *end;
    Index index;
    PyObject *values = NULL;
    Py_ssize_t i;
    (void)self;
    if (count != 3 || !PyBytes_Check(args[0]) || !PyList_Check(args[1]) || !PyType_Check(args[2])) {
        PyErr_SetString(PyExc_TypeError, "records(archive: bytes, cids: list, Cid)");
        return NULL;
    }
    p = (const uint8_t *)PyBytes_AS_STRING(args[0]);
    end = p + PyBytes_GET_SIZE(args[0]);
    if (read_root(&p, end) && read_blocks(&work, p, end, &index, 0)) values = PyList_New(PyList_GET_SIZE(args[1]));
    for (i = 0; values && i < PyList_GET_SIZE(args[1]); i++) {
        PyObject *value = read_block(&index, PyList_GET_ITEM(args[1], i), args[2]);
        if (value) PyList_SET_ITEM(values, i, value);
        else Py_CLEAR(values);
    }
    drop(&work);
    if (values) return values;
    if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_MemoryError)) PyErr_Clear();
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_NONE;
}

/* For the test that holds them equal to the twin's. */
static int add_limits(PyObject *module) {
    PyObject *limits = Py_BuildValue("(iiiiiii)", MAX_OPS, MAX_BLOCKS_BYTES, MAX_RECORD_BYTES, MAX_COMMIT_BYTES, MAX_DID_BYTES,
                                     MAX_NSID_BYTES, DENSE_BYTES);
    int failed = !limits || PyModule_AddObjectRef(module, "LIMITS", limits);
    Py_XDECREF(limits);
    return failed;
}

#endif
