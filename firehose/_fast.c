/* The verifier's hot path, compiled. Each function has a twin in Python that has the last word: whatever a
 * function here does not like, or is not simple, it gives back undone, so nothing is refused in this file.
 *
 *   split(data)             the one root and the hashed blocks of a CAR      firehose/car.py
 *   commit(block)           the fields of a commit, and what is signed of it firehose/commit.py
 *   undo(root, blocks, ops) the root before the ops of a commit              firehose/mst.py, verify/inversion.py
 *   decode(data, Cid)       the value of canonical DRISL-CBOR                firehose/drisl.py
 *   frame(data, Cid)        the header and body of a frame                   firehose/frames.py
 *   prove(frame)            what a #commit proves by itself                  firehose/verify/proven.py
 *   author(frame)           whose #commit it is                              firehose/frames.py
 *   records(archive, …)     the records of what was proved                   firehose/verify/proven.py
 *   make(type, values)      an instance of a frozen dataclass                firehose/compiled.py */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>

#include "_tree.h"

#define VERSION 3 /* of the functions here; as firehose.compiled.VERSION */
#define MAX_DEPTH 128 /* as firehose.json_form.MAX_DEPTH; a test holds them equal */

static const uint8_t BEFORE_ROOT[] = {0xa2, 0x65, 'r', 'o', 'o', 't', 's', 0x81, 0xd8, 0x2a, 0x58, 0x25, 0x00};
static const uint8_t AFTER_ROOT[] = {0x67, 'v', 'e', 'r', 's', 'i', 'o', 'n', 0x01};
#define HEADER_BYTES (sizeof BEFORE_ROOT + CID + sizeof AFTER_ROOT)

static int is_cid(const uint8_t *p) { return p[0] == 1 && (p[1] == 0x71 || p[1] == 0x55) && p[2] == 0x12 && p[3] == 0x20; }

static int hashes_to(const uint8_t *block, size_t size, const uint8_t *cid) {
    uint8_t digest[32];
    sha256(block, size, digest);
    return is_cid(cid) && !memcmp(digest, cid + 4, 32);
}

/* Archives ---------------------------------------------------------------------------------------------- */

/* The one root of an archive; `*p` goes to its first block. NULL: it is not that simple. */
static const uint8_t *read_root(const uint8_t **p, const uint8_t *end) {
    const uint8_t *root = *p + 1 + sizeof BEFORE_ROOT;
    if ((size_t)(end - *p) < 1 + HEADER_BYTES || **p != HEADER_BYTES) return NULL;
    if (memcmp(*p + 1, BEFORE_ROOT, sizeof BEFORE_ROOT) || memcmp(root + CID, AFTER_ROOT, sizeof AFTER_ROOT)) return NULL;
    *p += 1 + HEADER_BYTES;
    return is_cid(root) ? root : NULL;
}

/* The next block, with its CID before it; its hash is not looked at. Returns 0 if there is none. */
static int next_block(const uint8_t **at, const uint8_t *end, Block *block) {
    const uint8_t *p = *at;
    size_t length = *p++;
    if (length >= 0x80) { /* at most three bytes: no block is longer than a frame's blocks */
        if (p >= end) return 0;
        length = (length & 0x7f) | (size_t)(*p & 0x7f) << 7;
        if (*p++ >= 0x80) {
            if (p >= end || *p >= 0x80) return 0;
            length |= (size_t)*p << 14;
            p++;
        }
        if (p[-1] == 0) return 0; /* longer than necessary */
    }
    if (length < CID || length > (size_t)(end - p)) return 0;
    block->cid = p, block->bytes = p + CID, block->size = (uint32_t)(length - CID);
    *at = p + length;
    return 1;
}

static int add_block(PyObject *blocks, const Block *block) {
    PyObject *name, *bytes;
    int is_done;
    if (!hashes_to(block->bytes, block->size, block->cid)) return 0;
    name = PyBytes_FromStringAndSize((const char *)block->cid, CID);
    bytes = PyBytes_FromStringAndSize((const char *)block->bytes, (Py_ssize_t)block->size);
    is_done = name && bytes && !PyDict_SetItem(blocks, name, bytes);
    Py_XDECREF(name);
    Py_XDECREF(bytes);
    return is_done;
}

static PyObject *split_car(PyObject *self, PyObject *data) {
    const uint8_t *p, *end, *root;
    PyObject *blocks;
    Block block;
    (void)self;
    if (!PyBytes_Check(data)) {
        PyErr_SetString(PyExc_TypeError, "split(data: bytes)");
        return NULL;
    }
    p = (const uint8_t *)PyBytes_AS_STRING(data);
    end = p + PyBytes_GET_SIZE(data);
    if (!(root = read_root(&p, end))) Py_RETURN_NONE;
    if (!(blocks = PyDict_New())) return NULL;
    while (p < end) {
        if (next_block(&p, end, &block) && add_block(blocks, &block)) continue;
        Py_DECREF(blocks);
        if (PyErr_Occurred()) return NULL;
        Py_RETURN_NONE;
    }
    return Py_BuildValue("([y#]N)", root, (Py_ssize_t)CID, blocks);
}

/* Commits ----------------------------------------------------------------------------------------------- */

/* A text of plain ASCII or a byte string; NULL: it is none. */
static const uint8_t *read_string(const uint8_t **p, const uint8_t *end, int major, int64_t *size) {
    const uint8_t *start;
    int64_t i;
    *size = read_head(p, end, major);
    if (*size < 0 || *size > end - *p) return NULL;
    start = *p;
    for (i = 0; major == 3 && i < *size; i++)
        if (start[i] >= 0x80) return NULL;
    *p += *size;
    return start;
}

typedef struct {
    const uint8_t *did, *rev, *sig, *data, *prev, *sig_field, *after_sig;
    int64_t did_size, rev_size, sig_size;
} Commit;

/* The fields of a commit without a commit before it; 0: it is none, or not simple. */
static int read_commit(const uint8_t *p, const uint8_t *end, Commit *commit) {
    if (p >= end || *p++ != 0xa6) return 0;
    if (!read_name(&p, end, "did") || !(commit->did = read_string(&p, end, 3, &commit->did_size))) return 0;
    if (!read_name(&p, end, "rev") || !(commit->rev = read_string(&p, end, 3, &commit->rev_size))) return 0;
    commit->sig_field = p;
    if (!read_name(&p, end, "sig") || !(commit->sig = read_string(&p, end, 2, &commit->sig_size))) return 0;
    commit->after_sig = p;
    if (!read_name(&p, end, "data") || !read_link(&p, end, &commit->data, 0)) return 0;
    if (!read_name(&p, end, "prev") || !read_link(&p, end, &commit->prev, 1) || commit->prev) return 0; /* almost never */
    return read_name(&p, end, "version") && end - p == 1 && *p == 3;
}

/* What is signed of a commit, as many bytes as `signed_bytes` says. */
static size_t signed_bytes(const Commit *commit, size_t size) {
    return size - (size_t)(commit->after_sig - commit->sig_field);
}

static void write_signed(const Commit *commit, const uint8_t *block, size_t size, uint8_t *out) {
    size_t before = (size_t)(commit->sig_field - block);
    memcpy(out, block, before);
    out[0] = 0xa5;
    memcpy(out + before, commit->after_sig, size - (size_t)(commit->after_sig - block));
}

static PyObject *commit_fields(PyObject *self, PyObject *block) {
    const uint8_t *start;
    size_t size;
    Commit commit;
    PyObject *what;
    (void)self;
    if (!PyBytes_Check(block)) {
        PyErr_SetString(PyExc_TypeError, "commit(block: bytes)");
        return NULL;
    }
    start = (const uint8_t *)PyBytes_AS_STRING(block);
    size = (size_t)PyBytes_GET_SIZE(block);
    if (!read_commit(start, start + size, &commit)) Py_RETURN_NONE;
    if (!(what = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)signed_bytes(&commit, size)))) return NULL;
    write_signed(&commit, start, size, (uint8_t *)PyBytes_AS_STRING(what));
    return Py_BuildValue("(s#s#y#y#N)", commit.did, (Py_ssize_t)commit.did_size, commit.rev, (Py_ssize_t)commit.rev_size,
                         commit.sig, (Py_ssize_t)commit.sig_size, commit.data, (Py_ssize_t)CID, what);
}

/* Ops --------------------------------------------------------------------------------------------------- */

/* 36 bytes, or NULL for None; -1: it is neither. */
static int cid_in(PyObject *value, const uint8_t **cid) {
    *cid = NULL;
    if (value == Py_None) return 0;
    if (!PyBytes_Check(value) || PyBytes_GET_SIZE(value) != CID) return -1;
    *cid = (const uint8_t *)PyBytes_AS_STRING(value);
    return 0;
}

typedef struct {
    const uint8_t *key, *cid, *prev; /* cid NULL: it was deleted; prev NULL: it was created */
    uint32_t size;
} Step;

static int undo_one(Work *work, Link *top, const Step *step) {
    const uint8_t *key = step->key, *there;
    uint32_t size = step->size;
    if (!top->node && !(top->node = load(work, top->cid, -1, NO_EDGE, NO_EDGE))) return 0;
    there = get(work, top->node, key, size);
    if (work->failed || !there != !step->cid || (step->cid && memcmp(there, step->cid, CID))) return 0;
    if (!step->cid && !step->prev) return 0;
    top->cid = NULL;
    if (step->prev) return put(work, &top->node, key, size, step->prev);
    if (!cut(work, &top->node, height_of(key, size), key, size, NO_EDGE, NO_EDGE)) return 0;
    if (!top->node && !(top->node = new_node(work, 0, 2))) return 0;
    *top = trimmed(work, top->node);
    return !work->failed;
}

static int read_step(PyObject *op, Step *step) {
    PyObject *key;
    if (!PyTuple_Check(op) || PyTuple_GET_SIZE(op) != 3 || !PyBytes_Check(key = PyTuple_GET_ITEM(op, 0))) return 0;
    if (cid_in(PyTuple_GET_ITEM(op, 1), &step->cid) || cid_in(PyTuple_GET_ITEM(op, 2), &step->prev)) return 0;
    if (PyBytes_GET_SIZE(key) > MAX_KEY_BYTES || !PyBytes_GET_SIZE(key)) return 0;
    step->key = (const uint8_t *)PyBytes_AS_STRING(key);
    step->size = (uint32_t)PyBytes_GET_SIZE(key);
    return 1;
}

static PyObject *undo(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    Work work = {NULL, NULL, NULL, 0, 0, 0};
    Link top = {NULL, NULL};
    Step step;
    const uint8_t *root = NULL;
    PyObject *result = NULL;
    Py_ssize_t i;
    (void)self;
    if (count != 3 || cid_in(args[0], &top.cid) || !top.cid || !PyDict_Check(args[1]) || !PyList_Check(args[2])) {
        PyErr_SetString(PyExc_TypeError, "undo(root: bytes, blocks: dict, ops: list)");
        return NULL;
    }
    work.blocks = args[1];
    for (i = 0; i < PyList_GET_SIZE(args[2]); i++)
        if (!read_step(PyList_GET_ITEM(args[2], i), &step) || !undo_one(&work, &top, &step)) break;
    if (i == PyList_GET_SIZE(args[2])) root = cid_of(&work, &top);
    if (root) result = PyBytes_FromStringAndSize((const char *)root, CID);
    drop(&work);
    if (result || PyErr_Occurred()) return result;
    Py_RETURN_NONE;
}

/* Values ------------------------------------------------------------------------------------------------ */

typedef struct {
    const uint8_t *p, *end;
    PyObject *cid_type; /* a class with the one slot `bytes` */
} Reader;

static PyObject *bytes_name;

static PyObject *read_value(Reader *reader, int depth);

/* The argument of a head whose first byte was read, shortest form only. Returns 0 if it is none. */
static int read_argument(Reader *reader, int info, uint64_t *number) {
    int width, i;
    if (info < 24) {
        *number = (uint64_t)info;
        return 1;
    }
    if (info > 27) return 0;
    width = 1 << (info - 24);
    if (reader->end - reader->p < width) return 0;
    for (i = 0, *number = 0; i < width; i++) *number = *number << 8 | *reader->p++;
    return *number >= (width == 1 ? 24 : (uint64_t)1 << 4 * width);
}

static PyObject *read_list(Reader *reader, uint64_t number, int depth) {
    uint64_t i;
    PyObject *list = depth > 0 && number <= (uint64_t)(reader->end - reader->p) ? PyList_New(0) : NULL;
    if (!list) return NULL;
    for (i = 0; i < number; i++) {
        PyObject *item = read_value(reader, depth - 1);
        if (!item || PyList_Append(list, item)) {
            Py_XDECREF(item);
            Py_DECREF(list);
            return NULL;
        }
        Py_DECREF(item);
    }
    return list;
}

static PyObject *read_map(Reader *reader, uint64_t number, int depth) {
    const uint8_t *before = NULL;
    uint64_t i, before_size = 0;
    PyObject *map = depth > 0 && number <= (uint64_t)(reader->end - reader->p) ? PyDict_New() : NULL;
    if (!map) return NULL;
    for (i = 0; i < number; i++) {
        PyObject *key = NULL, *value = NULL;
        uint64_t size;
        int is_done = 0;
        if (reader->p < reader->end && *reader->p >> 5 == 3) {
            int info = *reader->p++ & 31, order;
            if (read_argument(reader, info, &size) && size <= (uint64_t)(reader->end - reader->p)) {
                /* Shorter keys first, then by their bytes, none twice. */
                order = !before || before_size < size ? -1 : before_size > size ? 1 : memcmp(before, reader->p, size);
                before = reader->p, before_size = size;
                if (order < 0 && (key = PyUnicode_DecodeUTF8((const char *)reader->p, (Py_ssize_t)size, NULL))) {
                    reader->p += size;
                    value = read_value(reader, depth - 1);
                    is_done = value && !PyDict_SetItem(map, key, value);
                }
            }
        }
        Py_XDECREF(key);
        Py_XDECREF(value);
        if (!is_done) {
            Py_DECREF(map);
            return NULL;
        }
    }
    return map;
}

static PyObject *read_cid(Reader *reader) {
    PyTypeObject *type = (PyTypeObject *)reader->cid_type;
    PyObject *bytes, *cid;
    if (reader->end - reader->p < 4 + CID || memcmp(reader->p, LINK + 1, 4) || !is_cid(reader->p + 4)) return NULL;
    if (!(bytes = PyBytes_FromStringAndSize((const char *)reader->p + 4, CID))) return NULL;
    reader->p += 4 + CID;
    cid = type->tp_alloc(type, 0);
    if (cid && PyObject_GenericSetAttr(cid, bytes_name, bytes)) Py_CLEAR(cid); /* past its __setattr__, as its __init__ */
    Py_DECREF(bytes);
    return cid;
}

static PyObject *read_simple(Reader *reader, int info) {
    double number;
    if (info == 20) Py_RETURN_FALSE;
    if (info == 21) Py_RETURN_TRUE;
    if (info == 22) Py_RETURN_NONE;
    if (info != 27 || reader->end - reader->p < 8) return NULL;
    number = PyFloat_Unpack8((const char *)reader->p, 0);
    if (!isfinite(number)) return NULL;
    reader->p += 8;
    return PyFloat_FromDouble(number);
}

/* The next value; NULL, with or without an exception: the twin says what is wrong. */
static PyObject *read_value(Reader *reader, int depth) {
    int major, info;
    uint64_t number;
    if (reader->p >= reader->end) return NULL;
    major = *reader->p >> 5, info = *reader->p & 31;
    reader->p++;
    if (major == 7) return read_simple(reader, info);
    if (major == 6) return info == 24 ? read_cid(reader) : NULL;
    if (!read_argument(reader, info, &number)) return NULL;
    if (major == 0) return PyLong_FromUnsignedLongLong(number);
    if (major == 1) return number >> 63 ? NULL : PyLong_FromLongLong(-1 - (long long)number);
    if (major == 4) return read_list(reader, number, depth);
    if (major == 5) return read_map(reader, number, depth);
    if (number > (uint64_t)(reader->end - reader->p)) return NULL;
    reader->p += number;
    if (major == 2) return PyBytes_FromStringAndSize((const char *)reader->p - number, (Py_ssize_t)number);
    return PyUnicode_DecodeUTF8((const char *)reader->p - number, (Py_ssize_t)number, NULL);
}

static PyObject *decode(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    Reader reader;
    PyObject *value;
    (void)self;
    if (count != 2 || !PyBytes_Check(args[0]) || !PyType_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "decode(data: bytes, Cid)");
        return NULL;
    }
    reader.p = (const uint8_t *)PyBytes_AS_STRING(args[0]);
    reader.end = reader.p + PyBytes_GET_SIZE(args[0]);
    reader.cid_type = args[1];
    value = read_value(&reader, MAX_DEPTH);
    if (value && reader.p == reader.end) return value;
    Py_XDECREF(value);
    if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_MemoryError)) PyErr_Clear();
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_NOTIMPLEMENTED;
}

/* frame(data, Cid): header and body, two canonical maps and nothing after them. */
static PyObject *read_frame(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    Reader reader;
    PyObject *header, *body = NULL;
    (void)self;
    if (count != 2 || !PyBytes_Check(args[0]) || !PyType_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "frame(data: bytes, Cid)");
        return NULL;
    }
    reader.p = (const uint8_t *)PyBytes_AS_STRING(args[0]);
    reader.end = reader.p + PyBytes_GET_SIZE(args[0]);
    reader.cid_type = args[1];
    header = read_value(&reader, MAX_DEPTH);
    if (header) body = read_value(&reader, MAX_DEPTH);
    if (body && reader.p == reader.end && PyDict_Check(header) && PyDict_Check(body))
        return Py_BuildValue("(NN)", header, body);
    Py_XDECREF(header);
    Py_XDECREF(body);
    if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_MemoryError)) PyErr_Clear();
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_NONE;
}

/* make(type, values): an instance of a frozen dataclass with slots, its fields set past its __setattr__. */
static PyObject *make(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    PyTypeObject *type;
    PyObject *names, *made = NULL;
    Py_ssize_t i;
    (void)self;
    if (count != 2 || !PyType_Check(args[0]) || !PyTuple_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "make(type, values: tuple)");
        return NULL;
    }
    type = (PyTypeObject *)args[0];
    if (!(names = PyObject_GetAttrString(args[0], "__slots__"))) return NULL;
    if (!PyTuple_Check(names) || PyTuple_GET_SIZE(names) != PyTuple_GET_SIZE(args[1]))
        PyErr_SetString(PyExc_TypeError, "make: not as many values as slots");
    else if ((made = type->tp_alloc(type, 0)))
        for (i = 0; i < PyTuple_GET_SIZE(names); i++)
            if (PyObject_GenericSetAttr(made, PyTuple_GET_ITEM(names, i), PyTuple_GET_ITEM(args[1], i))) {
                Py_CLEAR(made);
                break;
            }
    Py_DECREF(names);
    return made;
}

#include "_proof.h"

static PyMethodDef METHODS[] = {
    {"split", split_car, METH_O, "split(data): ([root], blocks) of a CAR, each block hashed; None: not simple."},
    {"commit", commit_fields, METH_O, "commit(block): (did, rev, sig, data, what is signed); None: not simple."},
    {"undo", (PyCFunction)(void (*)(void))undo, METH_FASTCALL,
     "undo(root, blocks, [(key, cid, prev), ...]): the root before the ops; None: not simple."},
    {"decode", (PyCFunction)(void (*)(void))decode, METH_FASTCALL,
     "decode(data, Cid): the value; NotImplemented: not canonical, or not simple."},
    {"frame", (PyCFunction)(void (*)(void))read_frame, METH_FASTCALL,
     "frame(data, Cid): (header, body); None: not two canonical maps, or not simple."},
    {"make", (PyCFunction)(void (*)(void))make, METH_FASTCALL, "make(type, values): an instance with these in its slots."},
    {"records", (PyCFunction)(void (*)(void))records, METH_FASTCALL,
     "records(archive, cids, Cid): the values of these blocks, whose hashes were checked before; None: not simple."},
    {"prove", prove, METH_O, "prove(frame): what a #commit proves by itself, as firehose.verify.proven says; None: not simple."},
    {"author", author, METH_O, "author(frame): the DID of a #commit; None: not simple."},
    {NULL, NULL, 0, NULL}};

static struct PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT, "firehose._fast", "The verifier's hot path; each function has a twin in Python.", -1, METHODS,
    NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__fast(void) {
    PyObject *module = PyModule_Create(&MODULE);
    sha_is_fast = sha_has_instructions();
    if (!bytes_name && !(bytes_name = PyUnicode_InternFromString("bytes"))) Py_CLEAR(module);
    if (module && PyModule_AddIntConstant(module, "HAS_SHA", sha_is_fast)) Py_CLEAR(module);
    if (module && PyModule_AddIntConstant(module, "MAX_DEPTH", MAX_DEPTH)) Py_CLEAR(module);
    if (module && PyModule_AddIntConstant(module, "VERSION", VERSION)) Py_CLEAR(module);
    if (module && add_limits(module)) Py_CLEAR(module);
    return module;
}
