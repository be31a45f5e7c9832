/* Undoing one op on a Merkle search tree: bytes in, root out. The compiled twin of firehose/verify/splice.py.
 *
 * undo(root, blocks, key, value, prev, sha256) walks from `root` to the node that holds `key`, puts `prev` back
 * (or takes the key out if `prev` is None), and swaps the changed links in the nodes above. Every node that it
 * reads is checked in full: one canonical encoding, keys in order and within the bounds of the nodes above,
 * prefixes as long as possible, each key at the height that its hash gives. It returns the new root's CID
 * (36 bytes), or None for whatever it does not like or is not simple: then the Python code has the last word,
 * so nothing is refused here, and nothing that happens here can make a lie true. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#define CID 36
#define MAX_KEYS 1024          /* of all nodes on the way; more is for the Python code */
#define MAX_KEY_BYTES 1024
#define MAX_DEPTH 64
#define ARENA_BYTES (1 << 16)  /* of all their keys; small enough for the heap, so that no call maps memory */

static const uint8_t LINK[5] = {0xd8, 0x2a, 0x58, 0x25, 0x00};
static const uint8_t PREFIX[4] = {0x01, 0x71, 0x12, 0x20};

/* SHA-256 of keys (FIPS 180-4); blocks are hashed by hashlib, which uses the processor's own instructions. */

static const uint32_t K[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

#define ROR(x, n) ((x) >> (n) | (x) << (32 - (n)))

static void compress(uint32_t s[8], const uint8_t *p) {
    uint32_t w[64], a, b, c, d, e, f, g, h;
    int i;
    for (i = 0; i < 16; i++)
        w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 | (uint32_t)p[4 * i + 2] << 8 | p[4 * i + 3];
    for (; i < 64; i++) {
        uint32_t x = w[i - 15], y = w[i - 2];
        w[i] = w[i - 16] + (ROR(x, 7) ^ ROR(x, 18) ^ x >> 3) + w[i - 7] + (ROR(y, 17) ^ ROR(y, 19) ^ y >> 10);
    }
    a = s[0], b = s[1], c = s[2], d = s[3], e = s[4], f = s[5], g = s[6], h = s[7];
    for (i = 0; i < 64; i++) {
        uint32_t t = h + (ROR(e, 6) ^ ROR(e, 11) ^ ROR(e, 25)) + ((e & f) ^ (~e & g)) + K[i] + w[i];
        uint32_t u = (ROR(a, 2) ^ ROR(a, 13) ^ ROR(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
        h = g, g = f, f = e, e = d + t, d = c, c = b, b = a, a = t + u;
    }
    s[0] += a, s[1] += b, s[2] += c, s[3] += d, s[4] += e, s[5] += f, s[6] += g, s[7] += h;
}

/* Half the number of zero bits that the hash of a key begins with. */
static int height_of(const uint8_t *key, size_t size) {
    uint32_t s[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    uint8_t last[128];
    uint64_t bits = (uint64_t)size * 8;
    size_t rest = size, tail;
    int zeros = 0, i;
    for (; rest >= 64; rest -= 64, key += 64) compress(s, key);
    tail = rest < 56 ? 64 : 128;
    memset(last, 0, sizeof last);
    memcpy(last, key, rest);
    last[rest] = 0x80;
    for (i = 0; i < 8; i++) last[tail - 1 - i] = (uint8_t)(bits >> 8 * i);
    compress(s, last);
    if (tail == 128) compress(s, last + 64);
    for (i = 0; i < 8; i++) {
        if (s[i]) {
            zeros += __builtin_clz(s[i]);
            break;
        }
        zeros += 32;
    }
    return zeros / 2;
}

/* Nodes. */

typedef struct {
    const uint8_t *key, *value, *right; /* right: the subtree after the key, or NULL */
    uint32_t size;
} Entry;

typedef struct {
    const uint8_t *left; /* the subtree before the first key, or NULL */
    Entry *entries;
    int count;
} Node;

typedef struct {
    PyObject *blocks, *sha256;
    uint8_t *arena;
    size_t used;
    Entry *entries;
    int entries_used;
    const uint8_t *low, *high; /* the keys around the present node, or NULL */
    uint32_t low_size, high_size;
} Work;

static int compare(const uint8_t *a, uint32_t m, const uint8_t *b, uint32_t n) {
    int order = memcmp(a, b, m < n ? m : n);
    return order ? order : (m > n) - (m < n);
}

/* The head of a CBOR item of this major type, shortest form only; -1 if there is none. */
static int64_t head(const uint8_t **p, const uint8_t *end, int major) {
    int64_t n;
    if (*p >= end || **p >> 5 != major) return -1;
    n = *(*p)++ & 31;
    if (n < 24) return n;
    if (n == 24 && end - *p >= 1) {
        n = *(*p)++;
        return n < 24 ? -1 : n;
    }
    if (n == 25 && end - *p >= 2) {
        n = (int64_t)(*p)[0] << 8 | (*p)[1];
        *p += 2;
        return n < 256 ? -1 : n;
    }
    return -1;
}

static int name(const uint8_t **p, const uint8_t *end, char letter) {
    if (end - *p < 2 || (*p)[0] != 0x61 || (*p)[1] != (uint8_t)letter) return 0;
    *p += 2;
    return 1;
}

static int link_or_null(const uint8_t **p, const uint8_t *end, const uint8_t **cid, int may_be_null) {
    *cid = NULL;
    if (may_be_null && *p < end && **p == 0xf6) {
        (*p)++;
        return 1;
    }
    if (end - *p < 5 + CID || memcmp(*p, LINK, 5) || memcmp(*p + 5, PREFIX, 4)) return 0;
    *cid = *p + 5;
    *p += 5 + CID;
    return 1;
}

/* Read the block of `cid`, checked in full. `*height` is what its keys must have; -1: the first one tells.
 * Returns 0 if anything is not as it must be, or too much. */
static int read_node(Work *work, const uint8_t *cid, int *height, Node *node, PyObject **block_out) {
    PyObject *name_of = PyBytes_FromStringAndSize((const char *)cid, CID), *block;
    const uint8_t *p, *end, *before = NULL;
    uint32_t before_size = 0;
    int64_t count, i;
    if (!name_of) return 0;
    block = PyDict_GetItemWithError(work->blocks, name_of); /* borrowed: `blocks` keeps it */
    Py_DECREF(name_of);
    if (!block || !PyBytes_Check(block)) return 0;
    *block_out = block;
    p = (const uint8_t *)PyBytes_AS_STRING(block);
    end = p + PyBytes_GET_SIZE(block);
    if (end - p < 4 || *p++ != 0xa2 || !name(&p, end, 'e')) return 0;
    count = head(&p, end, 4);
    if (count < 0 || count > MAX_KEYS || work->entries_used + count > MAX_KEYS) return 0;
    node->entries = work->entries + work->entries_used;
    node->count = (int)count;
    work->entries_used += (int)count;
    for (i = 0; i < count; i++) {
        Entry *entry = &node->entries[i];
        int64_t size, shared;
        const uint8_t *rest;
        uint8_t *key;
        if (p >= end || *p++ != 0xa4 || !name(&p, end, 'k')) return 0;
        size = head(&p, end, 2);
        if (size <= 0 || size > end - p) return 0;
        rest = p;
        p += size;
        if (!name(&p, end, 'p')) return 0;
        shared = head(&p, end, 0);
        if (shared < 0 || shared > before_size || shared + size > MAX_KEY_BYTES) return 0;
        /* In order, and no prefix shorter than it could be: the first byte after it must be greater. */
        if (shared < before_size && rest[0] <= before[shared]) return 0;
        if (work->used + shared + size > ARENA_BYTES) return 0;
        key = work->arena + work->used;
        work->used += shared + size;
        memcpy(key, before, shared);
        memcpy(key + shared, rest, size);
        entry->key = before = key;
        entry->size = before_size = (uint32_t)(shared + size);
        if (!name(&p, end, 't') || !link_or_null(&p, end, &entry->right, 1)) return 0;
        if (!name(&p, end, 'v') || !link_or_null(&p, end, &entry->value, 0)) return 0;
        if (*height < 0) *height = height_of(key, entry->size);
        else if (height_of(key, entry->size) != *height) return 0;
        if (*height == 0 && entry->right) return 0;
    }
    if (!name(&p, end, 'l') || !link_or_null(&p, end, &node->left, 1) || p != end) return 0;
    if (*height < 0 || (*height == 0 && node->left)) return 0; /* a root without keys; a child below a leaf */
    if (!count) return node->left != NULL;
    if (work->low && compare(node->entries[0].key, node->entries[0].size, work->low, work->low_size) <= 0) return 0;
    return !work->high || compare(before, before_size, work->high, work->high_size) < 0;
}

/* Hash a block into a CID. Returns 0 with an exception set. */
static int cid_of(Work *work, PyObject *block, uint8_t cid[CID]) {
    PyObject *hash = PyObject_CallOneArg(work->sha256, block), *digest;
    if (!hash) return 0;
    digest = PyObject_CallMethod(hash, "digest", NULL);
    Py_DECREF(hash);
    if (!digest) return 0;
    memcpy(cid, PREFIX, 4);
    memcpy(cid + 4, PyBytes_AS_STRING(digest), CID - 4);
    Py_DECREF(digest);
    return 1;
}

static uint8_t *put_head(uint8_t *p, int major, uint32_t n) {
    if (n < 24) *p++ = (uint8_t)(major << 5 | n);
    else if (n < 256) *p++ = (uint8_t)(major << 5 | 24), *p++ = (uint8_t)n;
    else *p++ = (uint8_t)(major << 5 | 25), *p++ = (uint8_t)(n >> 8), *p++ = (uint8_t)n;
    return p;
}

static uint8_t *put_link(uint8_t *p, const uint8_t *cid) {
    if (!cid) {
        *p++ = 0xf6;
        return p;
    }
    memcpy(p, LINK, 5);
    memcpy(p + 5, cid, CID);
    return p + 5 + CID;
}

/* Write a node and hash it. Returns 0 with an exception set. */
static int write_node(Work *work, const Node *node, uint8_t cid[CID]) {
    size_t room = 64 + CID;
    PyObject *block;
    uint8_t *start, *p;
    const Entry *before = NULL;
    int i, is_done;
    for (i = 0; i < node->count; i++) room += node->entries[i].size + 2 * (5 + CID) + 32;
    block = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)room);
    if (!block) return 0;
    start = p = (uint8_t *)PyBytes_AS_STRING(block);
    memcpy(p, "\xa2\x61" "e", 3), p += 3;
    p = put_head(p, 4, (uint32_t)node->count);
    for (i = 0; i < node->count; i++) {
        const Entry *entry = &node->entries[i];
        uint32_t shared = 0;
        if (before)
            while (shared < before->size && shared < entry->size && before->key[shared] == entry->key[shared]) shared++;
        memcpy(p, "\xa4\x61" "k", 3), p += 3;
        p = put_head(p, 2, entry->size - shared);
        memcpy(p, entry->key + shared, entry->size - shared), p += entry->size - shared;
        memcpy(p, "\x61" "p", 2), p += 2;
        p = put_head(p, 0, shared);
        memcpy(p, "\x61" "t", 2), p += 2;
        p = put_link(p, entry->right);
        memcpy(p, "\x61" "v", 2), p += 2;
        p = put_link(p, entry->value);
        before = entry;
    }
    memcpy(p, "\x61" "l", 2), p += 2;
    p = put_link(p, node->left);
    if (_PyBytes_Resize(&block, p - start)) return 0;
    is_done = cid_of(work, block, cid);
    Py_DECREF(block);
    return is_done;
}

/* Two neighbouring subtrees of one height as one; its CID goes to `out`. */
static int merge(Work *work, const uint8_t *first, const uint8_t *second, int height, uint8_t out[CID]) {
    Node left, right, both;
    PyObject *block;
    uint8_t inner_cid[CID];
    const uint8_t *inner, *last;
    int left_height = height, right_height = height;
    if (height < 0 || !read_node(work, first, &left_height, &left, &block)) return 0;
    if (!read_node(work, second, &right_height, &right, &block)) return 0;
    if (left.count && right.count &&
        compare(left.entries[left.count - 1].key, left.entries[left.count - 1].size, right.entries[0].key,
                right.entries[0].size) >= 0)
        return 0;
    last = left.count ? left.entries[left.count - 1].right : left.left;
    inner = last ? last : right.left;
    if (last && right.left) {
        if (left.count) {
            work->low = left.entries[left.count - 1].key;
            work->low_size = left.entries[left.count - 1].size;
        }
        if (right.count) work->high = right.entries[0].key, work->high_size = right.entries[0].size;
        if (!merge(work, last, right.left, height - 1, inner_cid)) return 0;
        inner = inner_cid;
    }
    both.count = left.count + right.count;
    if (work->entries_used + both.count > MAX_KEYS) return 0;
    both.entries = work->entries + work->entries_used;
    work->entries_used += both.count;
    if (left.count) memcpy(both.entries, left.entries, sizeof(Entry) * (size_t)left.count);
    if (right.count) memcpy(both.entries + left.count, right.entries, sizeof(Entry) * (size_t)right.count);
    both.left = left.left;
    if (left.count) both.entries[left.count - 1].right = inner;
    else both.left = inner;
    return write_node(work, &both, out);
}

/* What the node becomes: its CID in `out`. Returns 1, 0 (not simple, or an exception), or 2 if it goes away. */
static int rewrite(Work *work, Node *node, int at, int height, const uint8_t *prev, uint8_t out[CID]) {
    const uint8_t **before, *left, *right;
    uint8_t merged[CID];
    if (prev) {
        node->entries[at].value = prev;
        return write_node(work, node, out);
    }
    before = at ? &node->entries[at - 1].right : &node->left;
    left = *before;
    right = node->entries[at].right;
    if (left && right) {
        work->low = at ? node->entries[at - 1].key : work->low;
        work->low_size = at ? node->entries[at - 1].size : work->low_size;
        if (at + 1 < node->count) work->high = node->entries[at + 1].key, work->high_size = node->entries[at + 1].size;
        if (!merge(work, left, right, height - 1, merged)) return 0;
        *before = merged;
    } else if (!left) {
        *before = right;
    }
    memmove(node->entries + at, node->entries + at + 1, sizeof(Entry) * (size_t)(node->count - at - 1));
    node->count--;
    if (!node->count && !node->left) return 2;
    return write_node(work, node, out);
}

/* Where in the node the key is (`*is_there`), or in front of which entry its subtree lies. */
static int position(const Node *node, const uint8_t *key, uint32_t size, int *is_there) {
    int low = 0, high = node->count;
    *is_there = 0;
    while (low < high) {
        int middle = (low + high) / 2;
        int order = compare(node->entries[middle].key, node->entries[middle].size, key, size);
        if (!order) {
            *is_there = 1;
            return middle;
        }
        if (order < 0) low = middle + 1;
        else high = middle;
    }
    return low;
}

/* The root's CID in `cid` after the change. Returns 0 if that is not simple, or an exception is set. */
static int walk(Work *work, uint8_t cid[CID], const uint8_t *key, uint32_t size, const uint8_t *value,
                const uint8_t *prev) {
    PyObject *blocks[MAX_DEPTH];
    Py_ssize_t offsets[MAX_DEPTH];
    int counts[MAX_DEPTH], depth, height = -1, at, is_there, state;
    const uint8_t *here = cid;
    Node node;
    for (depth = 0; depth < MAX_DEPTH; depth++, height--) {
        const uint8_t *child;
        if (depth && height < 0) return 0;
        if (!read_node(work, here, &height, &node, &blocks[depth])) return 0;
        at = position(&node, key, size, &is_there);
        if (is_there) break;
        child = at ? node.entries[at - 1].right : node.left;
        if (!child) return 0;
        offsets[depth] = (const char *)child - PyBytes_AS_STRING(blocks[depth]);
        counts[depth] = node.count;
        if (at) work->low = node.entries[at - 1].key, work->low_size = node.entries[at - 1].size;
        if (at < node.count) work->high = node.entries[at].key, work->high_size = node.entries[at].size;
        here = child;
    }
    if (depth == MAX_DEPTH || memcmp(node.entries[at].value, value, CID)) return 0;
    state = rewrite(work, &node, at, height, prev, cid);
    if (!state || (depth == 0 && !prev && !node.count)) return 0; /* a root without keys has to be trimmed */
    while (depth--) {
        const char *old = PyBytes_AS_STRING(blocks[depth]);
        Py_ssize_t length = PyBytes_GET_SIZE(blocks[depth]), offset = offsets[depth];
        PyObject *block;
        char *bytes;
        int is_done;
        if (state == 2 && !counts[depth]) continue; /* nothing is left of this one either */
        block = PyBytes_FromStringAndSize(NULL, state == 2 ? length - 4 - CID : length);
        if (!block) return 0;
        bytes = PyBytes_AS_STRING(block);
        if (state == 2) {
            memcpy(bytes, old, (size_t)offset - 5);
            bytes[offset - 5] = (char)0xf6;
            memcpy(bytes + offset - 4, old + offset + CID, (size_t)(length - offset - CID));
        } else {
            memcpy(bytes, old, (size_t)length);
            memcpy(bytes + offset, cid, CID);
        }
        is_done = cid_of(work, block, cid);
        Py_DECREF(block);
        if (!is_done) return 0;
        state = 1;
    }
    return state == 1;
}

static PyObject *undo(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    Work work = {0};
    uint8_t cid[CID];
    int is_done, i;
    (void)self;
    if (count != 6 || !PyDict_Check(args[1]) || !PyBytes_Check(args[2])) {
        PyErr_SetString(PyExc_TypeError, "undo(root, blocks, key, value, prev, sha256)");
        return NULL;
    }
    for (i = 0; i < 5; i++) {
        if (i == 1 || i == 2 || (i == 4 && args[4] == Py_None)) continue;
        if (!PyBytes_Check(args[i]) || PyBytes_GET_SIZE(args[i]) != CID) {
            PyErr_SetString(PyExc_TypeError, "a CID is 36 bytes");
            return NULL;
        }
    }
    if (PyBytes_GET_SIZE(args[2]) > MAX_KEY_BYTES) Py_RETURN_NONE;
    work.blocks = args[1];
    work.sha256 = args[5];
    work.arena = PyMem_Malloc(ARENA_BYTES);
    work.entries = PyMem_Malloc(sizeof(Entry) * MAX_KEYS);
    if (!work.arena || !work.entries) {
        PyMem_Free(work.arena);
        PyMem_Free(work.entries);
        return PyErr_NoMemory();
    }
    memcpy(cid, PyBytes_AS_STRING(args[0]), CID);
    is_done = walk(&work, cid, (const uint8_t *)PyBytes_AS_STRING(args[2]), (uint32_t)PyBytes_GET_SIZE(args[2]),
                   (const uint8_t *)PyBytes_AS_STRING(args[3]),
                   args[4] == Py_None ? NULL : (const uint8_t *)PyBytes_AS_STRING(args[4]));
    PyMem_Free(work.arena);
    PyMem_Free(work.entries);
    if (PyErr_Occurred()) return NULL;
    if (!is_done) Py_RETURN_NONE;
    return PyBytes_FromStringAndSize((const char *)cid, CID);
}

static PyMethodDef METHODS[] = {
    {"undo", (PyCFunction)(void (*)(void))undo, METH_FASTCALL,
     "undo(root, blocks, key, value, prev, sha256): the root before one op, or None if that is not simple."},
    {NULL, NULL, 0, NULL}};

static struct PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "firehose._undo", "See firehose/verify/splice.py.", -1, METHODS,
                                    NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__undo(void) { return PyModule_Create(&MODULE); }
