/* The Merkle search tree, compiled: firehose/mst.py and mst_node.py in C, for undoing the ops of a commit.
 *
 * Nodes come out of a dict of blocks as they are needed, and each is checked in full: one canonical encoding,
 * keys in order and within the bounds of the nodes above, prefixes as long as possible, each key at the height
 * that its hash gives. Everything lives in an arena that is dropped as a whole. Whatever is not as it must be,
 * or takes more memory than honest trees do, fails (`work->failed`): then the Python twin has the last word. */
#ifndef FIREHOSE_TREE_H
#define FIREHOSE_TREE_H

#include "_sha256.h"

#define CID 36
#define MAX_KEY_BYTES 1024
#define BROAD_BYTES (1 << 16)  /* the keys of a node take no more than this, or than its block */
#define FIRST_BYTES (1 << 16)  /* of the arena; enough for the commits that people make */
#define MAX_ARENA_BYTES (8 << 20)

static const uint8_t LINK[5] = {0xd8, 0x2a, 0x58, 0x25, 0x00};
static const uint8_t DAG_CBOR[4] = {0x01, 0x71, 0x12, 0x20};

typedef struct Node Node;
typedef struct {
    const uint8_t *cid; /* NULL: changed, or there is nothing */
    Node *node;         /* NULL: not loaded, or there is nothing */
} Link;
typedef struct {
    const uint8_t *key, *value;
    uint32_t size;
    Link right; /* the subtree after the key */
} Entry;
struct Node {
    int height, count, room;
    Link left; /* the subtree before the first key */
    Entry *entries;
};
typedef struct {
    const uint8_t *key; /* NULL: no bound */
    uint32_t size;
} Edge;
typedef struct Chunk {
    struct Chunk *before;
    size_t used, size;
} Chunk;
typedef struct {
    const uint8_t *cid, *bytes; /* cid NULL: nothing here */
    uint32_t size;
} Block;
typedef struct {
    Block *slots;
    uint32_t mask; /* how many slots there are, a power of two, less one */
} Index;
typedef struct {
    PyObject *blocks;   /* a dict of bytes; NULL: they are in `index` */
    const Index *index; /* which holds what it points to */
    Chunk *chunk;
    size_t total;
    int failed, missing; /* missing: a block that is needed is not there */
} Work;

static const Edge NO_EDGE = {NULL, 0};

static void *take(Work *work, size_t size) {
    Chunk *chunk = work->chunk;
    void *taken;
    size = (size + 15) & ~(size_t)15;
    if (!chunk || chunk->used + size > chunk->size) {
        size_t wanted = size + 64 > FIRST_BYTES ? size + 64 : FIRST_BYTES;
        if (work->total + wanted > MAX_ARENA_BYTES || !(chunk = PyMem_Malloc(wanted))) {
            work->failed = 1;
            return NULL;
        }
        work->total += wanted;
        chunk->before = work->chunk, chunk->used = 64, chunk->size = wanted;
        work->chunk = chunk;
    }
    taken = (char *)chunk + chunk->used;
    chunk->used += size;
    return taken;
}

static void drop(Work *work) {
    while (work->chunk) {
        Chunk *before = work->chunk->before;
        PyMem_Free(work->chunk);
        work->chunk = before;
    }
}

static int compare(const uint8_t *a, uint32_t m, const uint8_t *b, uint32_t n) {
    int order = memcmp(a, b, m < n ? m : n);
    return order ? order : (m > n) - (m < n);
}

/* Half the number of zero bits that the hash of a key begins with. */
static int height_of(const uint8_t *key, size_t size) {
    uint8_t digest[32];
    int i = 0, zeros = 0;
    sha256(key, size, digest);
    while (i < 32 && !digest[i]) i++, zeros += 8;
    if (i < 32) zeros += __builtin_clz(digest[i]) - 24;
    return zeros / 2;
}

/* Reading ----------------------------------------------------------------------------------------------- */

/* The head of a CBOR item of this major type, shortest form only; -1 if there is none. */
static int64_t read_head(const uint8_t **p, const uint8_t *end, int major) {
    int64_t n, least[] = {24, 1 << 8, 1 << 16};
    int width, i;
    if (*p >= end || **p >> 5 != major) return -1;
    n = *(*p)++ & 31;
    if (n < 24) return n;
    if (n > 26) return -1; /* nothing here is longer than 4 GB */
    width = 1 << (n - 24);
    if (end - *p < width) return -1;
    for (i = 0, n = 0; i < width; i++) n = n << 8 | *(*p)++;
    return n < least[width / 2] ? -1 : n;
}

static inline int read_name(const uint8_t **p, const uint8_t *end, const char *name) {
    size_t size = strlen(name); /* known when compiled */
    if ((size_t)(end - *p) < size + 1 || **p != (0x60 | size) || memcmp(*p + 1, name, size)) return 0;
    *p += size + 1;
    return 1;
}

/* A link to a DRISL block, or null where it may be. */
static int read_link(const uint8_t **p, const uint8_t *end, const uint8_t **cid, int may_be_null) {
    *cid = NULL;
    if (may_be_null && *p < end && **p == 0xf6) {
        (*p)++;
        return 1;
    }
    if (end - *p < 5 + CID || memcmp(*p, LINK, 5) || memcmp(*p + 5, DAG_CBOR, 4)) return 0;
    *cid = *p + 5;
    *p += 5 + CID;
    return 1;
}

static int read_entry(Work *work, const uint8_t **p, const uint8_t *end, const Entry *before, Entry *entry) {
    uint32_t before_size = before ? before->size : 0;
    int64_t size, shared;
    const uint8_t *rest;
    uint8_t *key;
    if (*p >= end || *(*p)++ != 0xa4 || !read_name(p, end, "k")) return 0;
    size = read_head(p, end, 2);
    if (size <= 0 || size > end - *p) return 0;
    rest = *p, *p += size;
    if (!read_name(p, end, "p")) return 0;
    shared = read_head(p, end, 0);
    if (shared < 0 || shared > before_size || shared + size > MAX_KEY_BYTES) return 0;
    /* In order, and no prefix shorter than it could be: the first byte after it must be greater. */
    if (shared < before_size && rest[0] <= before->key[shared]) return 0;
    if (!(key = take(work, (size_t)(shared + size)))) return 0;
    if (shared) memcpy(key, before->key, (size_t)shared);
    memcpy(key + shared, rest, (size_t)size);
    entry->key = key, entry->size = (uint32_t)(shared + size), entry->right.node = NULL;
    if (!read_name(p, end, "t") || !read_link(p, end, &entry->right.cid, 1)) return 0;
    return read_name(p, end, "v") && read_link(p, end, &entry->value, 0);
}

/* Where the block of `cid` is, or would be. */
static Block *slot_of(const Index *index, const uint8_t *cid) {
    uint32_t at;
    memcpy(&at, cid + 4, sizeof at);
    for (at &= index->mask; index->slots[at].cid && memcmp(index->slots[at].cid, cid, CID); at = (at + 1) & index->mask) {
    }
    return &index->slots[at];
}

/* The bytes of the block of `cid`; NULL, with or without an exception: there is none. */
static const uint8_t *find_block(Work *work, const uint8_t *cid, size_t *size) {
    PyObject *name, *block;
    if (!work->blocks) {
        const Block *found = slot_of(work->index, cid);
        *size = found->size;
        work->missing = !found->cid;
        return found->bytes;
    }
    if (!(name = PyBytes_FromStringAndSize((const char *)cid, CID))) return NULL;
    block = PyDict_GetItemWithError(work->blocks, name); /* borrowed: `blocks` keeps it */
    Py_DECREF(name);
    work->missing = !block;
    if (!block || !PyBytes_Check(block)) return NULL;
    *size = (size_t)PyBytes_GET_SIZE(block);
    return (const uint8_t *)PyBytes_AS_STRING(block);
}

/* The node in the block of `cid`; `height` is what it must have, -1 for a root. NULL: it has failed. */
static Node *load(Work *work, const uint8_t *cid, int height, Edge low, Edge high) {
    const uint8_t *p, *end;
    size_t block_bytes;
    Node *node;
    int64_t count, i;
    size_t key_bytes = 0;
    int is_root = height < 0;
    work->failed = 1; /* until the end is reached */
    if (!(p = find_block(work, cid, &block_bytes))) return NULL;
    end = p + block_bytes;
    if (end - p < 4 || *p++ != 0xa2 || !read_name(&p, end, "e")) return NULL;
    count = read_head(&p, end, 4);
    if (count < 0 || count > (end - p) / 54) return NULL; /* the shortest that an entry can be */
    if (!(node = take(work, sizeof *node))) return NULL;
    node->count = (int)count, node->room = (int)count + 2;
    if (!(node->entries = take(work, sizeof(Entry) * (size_t)node->room))) return NULL;
    for (i = 0; i < count; i++) {
        Entry *entry = &node->entries[i];
        int found;
        if (!read_entry(work, &p, end, i ? entry - 1 : NULL, entry)) return NULL;
        key_bytes += entry->size;
        found = height_of(entry->key, entry->size);
        if (height < 0) height = found;
        if (found != height || (height == 0 && entry->right.cid)) return NULL;
    }
    node->left.node = NULL;
    if (!read_name(&p, end, "l") || !read_link(&p, end, &node->left.cid, 1) || p != end) return NULL;
    if (!count) {
        if (is_root ? node->left.cid != NULL : !node->left.cid) return NULL; /* a bare root; an empty node */
        if (is_root) height = 0;
    } else {
        const Entry *last = &node->entries[count - 1];
        if (low.key && compare(node->entries[0].key, node->entries[0].size, low.key, low.size) <= 0) return NULL;
        if (high.key && compare(last->key, last->size, high.key, high.size) >= 0) return NULL;
    }
    if (height == 0 && node->left.cid) return NULL;
    if (key_bytes > BROAD_BYTES && key_bytes > block_bytes) return NULL;
    node->height = height;
    work->failed = 0;
    return node;
}

static Link *link_at(Node *node, int index) { return index ? &node->entries[index - 1].right : &node->left; }

static int is_empty(const Link *link) { return !link->cid && !link->node; }

static Edge edge_of(const Node *node, int index, Edge outer) {
    Edge edge = outer;
    if (index >= 0 && index < node->count) edge.key = node->entries[index].key, edge.size = node->entries[index].size;
    return edge;
}

/* The subtree left of the key at `index`, loaded; NULL: there is none, or it has failed. */
static Node *child(Work *work, Node *node, int index, Edge low, Edge high) {
    Link *link = link_at(node, index);
    if (!link->node && link->cid && node->height > 0)
        link->node = load(work, link->cid, node->height - 1, edge_of(node, index - 1, low), edge_of(node, index, high));
    return link->node;
}

/* The position of the first key that is not before `key`; whether it is the key itself in `is_there`. */
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

/* Changing: nodes are ours, so they change in place ------------------------------------------------------- */

static Node *new_node(Work *work, int height, int room) {
    Node *node = take(work, sizeof *node);
    if (!node) return NULL;
    memset(node, 0, sizeof *node);
    node->height = height, node->room = room;
    node->entries = take(work, sizeof(Entry) * (size_t)(room ? room : 1));
    return node->entries ? node : NULL;
}

static int make_room(Work *work, Node *node, int more) {
    int room = node->count + more;
    Entry *entries;
    if (room <= node->room) return 1;
    room += room / 2 + 4;
    if (!(entries = take(work, sizeof(Entry) * (size_t)room))) return 0;
    if (node->count) memcpy(entries, node->entries, sizeof(Entry) * (size_t)node->count);
    node->entries = entries;
    node->room = room;
    return 1;
}

static Node *or_none(Node *node) { return node && !node->count && is_empty(&node->left) ? NULL : node; }

/* `node` under as many nodes without keys as it takes to reach `height`. */
static Node *raise_to(Work *work, Node *node, int height) {
    while (node && node->height < height) {
        Node *above = new_node(work, node->height + 1, 2);
        if (!above) return NULL;
        above->left.node = node;
        node = above;
    }
    return node;
}

static void set_child(Link *link, Node *node) { link->cid = NULL, link->node = node; }

/* What lies before `key` stays in `*node_io`, what lies after it goes to `*after`; the key is in neither. */
static int split(Work *work, Node **node_io, const uint8_t *key, uint32_t size, Edge low, Edge high, Node **after) {
    Node *node = *node_io, *inner, *inner_after = NULL;
    int is_there, at = position(node, key, size, &is_there);
    if (is_there) return 0;
    inner = child(work, node, at, low, high);
    if (work->failed) return 0;
    if (inner && !split(work, &inner, key, size, edge_of(node, at - 1, low), edge_of(node, at, high), &inner_after))
        return 0;
    if (!(*after = new_node(work, node->height, node->count - at + 2))) return 0;
    set_child(&(*after)->left, inner_after);
    (*after)->count = node->count - at;
    if (node->count > at) memcpy((*after)->entries, node->entries + at, sizeof(Entry) * (size_t)(node->count - at));
    node->count = at;
    set_child(link_at(node, at), inner);
    *node_io = or_none(node);
    *after = or_none(*after);
    return 1;
}

static int insert(Work *work, Node *node, int at, const uint8_t *key, uint32_t size, const uint8_t *value, Node *left,
                  Node *right) {
    Entry *entry;
    if (!make_room(work, node, 1)) return 0;
    entry = node->entries + at;
    memmove(entry + 1, entry, sizeof(Entry) * (size_t)(node->count - at));
    entry->key = key, entry->size = size, entry->value = value;
    set_child(&entry->right, right);
    node->count++;
    set_child(link_at(node, at), left);
    return 1;
}

/* Put `key` into `node`, which is at its height or above. */
static int put_below(Work *work, Node *node, int height, const uint8_t *key, uint32_t size, const uint8_t *value,
                     Edge low, Edge high) {
    int is_there, at = position(node, key, size, &is_there);
    Node *below, *after = NULL;
    if (height == node->height && is_there) {
        node->entries[at].value = value;
        return 1;
    }
    if (is_there) return 0;
    below = child(work, node, at, low, high);
    if (work->failed) return 0;
    low = edge_of(node, at - 1, low), high = edge_of(node, at, high);
    if (height == node->height) {
        if (below && !split(work, &below, key, size, low, high, &after)) return 0;
        return insert(work, node, at, key, size, value, below, after);
    }
    if (!below) {
        Node *leaf = new_node(work, height, 2);
        if (!leaf || !insert(work, leaf, 0, key, size, value, NULL, NULL)) return 0;
        if (!(below = raise_to(work, leaf, node->height - 1))) return 0;
    } else if (!put_below(work, below, height, key, size, value, low, high)) {
        return 0;
    }
    set_child(link_at(node, at), below);
    return 1;
}

static int put(Work *work, Node **top, const uint8_t *key, uint32_t size, const uint8_t *value) {
    int height = height_of(key, size);
    Node *left = *top, *right = NULL, *node;
    if (left->count && height <= left->height)
        return put_below(work, left, height, key, size, value, NO_EDGE, NO_EDGE);
    if (!left->count) left = NULL;
    else if (!split(work, &left, key, size, NO_EDGE, NO_EDGE, &right)) return 0;
    if (!(node = new_node(work, height, 4))) return 0;
    if (left && !(left = raise_to(work, left, height - 1))) return 0;
    if (right && !(right = raise_to(work, right, height - 1))) return 0;
    *top = node;
    return insert(work, node, 0, key, size, value, left, right);
}

/* Two neighbours of one height as one, in `left`; all keys lie between `low` and `high`, and `key` between them. */
static int merge(Work *work, Node *left, Node *right, Edge key, Edge low, Edge high) {
    Link *seam = link_at(left, left->count);
    Node *last = child(work, left, left->count, low, key), *first = work->failed ? NULL : child(work, right, 0, key, high);
    if (work->failed) return 0;
    if (last && first) {
        if (!merge(work, last, first, key, edge_of(left, left->count - 1, low), edge_of(right, 0, high))) return 0;
        set_child(seam, last);
    } else if (!last) {
        *seam = right->left;
    }
    if (!make_room(work, left, right->count)) return 0;
    if (right->count) memcpy(left->entries + left->count, right->entries, sizeof(Entry) * (size_t)right->count);
    left->count += right->count;
    return 1;
}

/* Take `key` out from below `*node_io`, which becomes NULL if nothing is left of it. */
static int cut(Work *work, Node **node_io, int height, const uint8_t *key, uint32_t size, Edge low, Edge high) {
    Node *node = *node_io, *left, *right;
    int is_there, at = position(node, key, size, &is_there);
    if (height != node->height) {
        if (is_there || height > node->height) return 0;
        left = child(work, node, at, low, high);
        if (!left || !cut(work, &left, height, key, size, edge_of(node, at - 1, low), edge_of(node, at, high))) return 0;
        set_child(link_at(node, at), left);
        *node_io = or_none(node);
        return 1;
    }
    if (!is_there) return 0;
    if (!is_empty(link_at(node, at)) && !is_empty(&node->entries[at].right)) {
        Edge here = {key, size};
        left = child(work, node, at, low, high);
        right = left ? child(work, node, at + 1, low, high) : NULL;
        if (!right || !merge(work, left, right, here, edge_of(node, at - 1, low), edge_of(node, at + 1, high))) return 0;
        set_child(link_at(node, at), left);
    } else if (is_empty(link_at(node, at))) {
        *link_at(node, at) = node->entries[at].right;
    }
    memmove(node->entries + at, node->entries + at + 1, sizeof(Entry) * (size_t)(node->count - at - 1));
    node->count--;
    *node_io = or_none(node);
    return 1;
}

/* The value under `key`, or NULL: it is not there, or it has failed. */
static const uint8_t *get(Work *work, Node *node, const uint8_t *key, uint32_t size) {
    Edge low = NO_EDGE, high = NO_EDGE;
    while (node) {
        int is_there, at = position(node, key, size, &is_there);
        Node *below;
        if (is_there) return node->entries[at].value;
        below = child(work, node, at, low, high);
        low = edge_of(node, at - 1, low), high = edge_of(node, at, high);
        node = below;
    }
    return NULL;
}

/* Writing ----------------------------------------------------------------------------------------------- */

static uint8_t *write_head(uint8_t *p, int major, uint32_t n) {
    if (n < 24) {
        *p++ = (uint8_t)(major << 5 | n);
    } else if (n < 1 << 8) {
        *p++ = (uint8_t)(major << 5 | 24), *p++ = (uint8_t)n;
    } else if (n < 1 << 16) {
        *p++ = (uint8_t)(major << 5 | 25), *p++ = (uint8_t)(n >> 8), *p++ = (uint8_t)n;
    } else {
        *p++ = (uint8_t)(major << 5 | 26), *p++ = (uint8_t)(n >> 24), *p++ = (uint8_t)(n >> 16);
        *p++ = (uint8_t)(n >> 8), *p++ = (uint8_t)n;
    }
    return p;
}

static uint8_t *write_link(uint8_t *p, const uint8_t *cid) {
    if (!cid) {
        *p++ = 0xf6;
        return p;
    }
    memcpy(p, LINK, 5);
    memcpy(p + 5, cid, CID);
    return p + 5 + CID;
}

static const uint8_t *cid_of(Work *work, Link *link);

/* The CID of a node, after those of the changed nodes below it; NULL: it has failed. */
static const uint8_t *hash_node(Work *work, Node *node) {
    size_t room = 64 + CID;
    uint8_t *start, *p, *cid = take(work, CID);
    const Entry *before = NULL;
    int i;
    if (!cid) return NULL;
    for (i = 0; i <= node->count; i++) {
        Link *link = link_at(node, i);
        if (!is_empty(link) && !cid_of(work, link)) return NULL;
        if (i < node->count) room += node->entries[i].size + 2 * (5 + CID) + 32;
    }
    if (!(start = p = PyMem_Malloc(room))) {
        work->failed = 1;
        return NULL;
    }
    memcpy(p, "\xa2\x61" "e", 3), p += 3;
    p = write_head(p, 4, (uint32_t)node->count);
    for (i = 0; i < node->count; i++) {
        const Entry *entry = &node->entries[i];
        uint32_t shared = 0, least = before && before->size < entry->size ? before->size : entry->size;
        if (before)
            while (shared < least && before->key[shared] == entry->key[shared]) shared++;
        memcpy(p, "\xa4\x61" "k", 3), p += 3;
        p = write_head(p, 2, entry->size - shared);
        memcpy(p, entry->key + shared, entry->size - shared), p += entry->size - shared;
        memcpy(p, "\x61" "p", 2), p += 2;
        p = write_head(p, 0, shared);
        memcpy(p, "\x61" "t", 2), p += 2;
        p = write_link(p, entry->right.cid);
        memcpy(p, "\x61" "v", 2), p += 2;
        p = write_link(p, entry->value);
        before = entry;
    }
    memcpy(p, "\x61" "l", 2), p += 2;
    p = write_link(p, node->left.cid);
    memcpy(cid, DAG_CBOR, 4);
    sha256(start, (size_t)(p - start), cid + 4);
    PyMem_Free(start);
    return cid;
}

static const uint8_t *cid_of(Work *work, Link *link) {
    if (!link->cid) link->cid = hash_node(work, link->node);
    return link->cid;
}

/* The top without the levels above its first key; a subtree that is not there need not be. */
static Link trimmed(Work *work, Node *top) {
    Link root = {NULL, top};
    while (root.node && !root.node->count && !is_empty(&root.node->left)) {
        Link below = root.node->left;
        if (!below.node) {
            below.node = load(work, below.cid, root.node->height - 1, NO_EDGE, NO_EDGE);
            if (work->missing) work->failed = work->missing = 0;
        }
        root = below;
    }
    return root;
}

#endif
