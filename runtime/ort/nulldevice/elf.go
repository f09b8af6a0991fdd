package nulldevice

// A shared library of nothing but names: each symbol is an absolute address (SHN_ABS)
// in this process. There is no code in it and nothing to relocate, so it needs no
// compiler, no executable mapping, and works on every machine whose dynamic
// loader knows absolute symbols (glibc 2.28 and later, which ONNX Runtime's packages
// need anyway). The layout is that of the ELF and gABI specifications:
//
//	header, program headers, .hash, .dynsym, .gnu.version, .gnu.version_d, .dynstr, .dynamic
//
// all in one segment, which is writable because the loader writes into .dynamic.

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
)

// A sharedLibrary is what the dynamic loader is to know of one library.
type sharedLibrary struct {
	soname string
	// version is the one that all symbols carry, "" for none.
	version string
	symbols []symbol
}

type symbol struct {
	name    string
	address uint64
}

// Versions of symbols by index: 1 is the library itself, without a version.
const (
	versionGlobal = 1
	versionOwn    = 2
)

const (
	headerSize = 64
	segments   = 3
	symbolSize = 24
	pageSize   = 4096
)

// names is a string table.
type names struct{ bytes.Buffer }

func (n *names) add(s string) uint32 {
	if n.Len() == 0 {
		n.WriteByte(0)
	}
	at := uint32(n.Len())
	n.WriteString(s)
	n.WriteByte(0)
	return at
}

// encode writes the library as a file.
func (l *sharedLibrary) encode() []byte {
	var strings names
	soname := strings.add(l.soname)
	out := bytes.NewBuffer(make([]byte, headerSize+segments*elfProgramSize))
	at := func() uint64 { // the next aligned place
		out.Write(make([]byte, -out.Len()&7))
		return uint64(out.Len())
	}
	hash := at()
	put(out, l.hash())
	symtab := at()
	put(out, l.symtab(&strings))
	var versym, verdef uint64
	if l.version != "" {
		versym = at()
		put(out, l.versym())
		verdef = at()
		put(out, l.verdef(&strings))
	}
	strtab := at()
	out.Write(strings.Bytes())
	dynamic := at()
	tags := []elf.Dyn64{
		{Tag: int64(elf.DT_SONAME), Val: uint64(soname)},
		{Tag: int64(elf.DT_HASH), Val: hash},
		{Tag: int64(elf.DT_SYMTAB), Val: symtab},
		{Tag: int64(elf.DT_SYMENT), Val: symbolSize},
		{Tag: int64(elf.DT_STRTAB), Val: strtab},
		{Tag: int64(elf.DT_STRSZ), Val: uint64(strings.Len())},
	}
	if l.version != "" {
		tags = append(tags, elf.Dyn64{Tag: int64(elf.DT_VERSYM), Val: versym},
			elf.Dyn64{Tag: int64(elf.DT_VERDEF), Val: verdef}, elf.Dyn64{Tag: int64(elf.DT_VERDEFNUM), Val: versionOwn})
	}
	put(out, append(tags, elf.Dyn64{}))
	file := out.Bytes()
	copy(file, l.head(uint64(len(file)), dynamic))
	return file
}

const elfProgramSize = 56

// head is the header and the program headers of a file of n bytes.
func (l *sharedLibrary) head(n, dynamic uint64) []byte {
	h := elf.Header64{
		Type: uint16(elf.ET_DYN), Machine: uint16(elf.EM_X86_64), Version: uint32(elf.EV_CURRENT),
		Phoff: headerSize, Ehsize: headerSize, Phentsize: elfProgramSize, Phnum: segments, Shentsize: 64,
	}
	copy(h.Ident[:], elf.ELFMAG)
	h.Ident[elf.EI_CLASS], h.Ident[elf.EI_DATA], h.Ident[elf.EI_VERSION] = byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)
	rw := uint32(elf.PF_R | elf.PF_W)
	var out bytes.Buffer
	put(&out, h)
	put(&out, []elf.Prog64{
		{Type: uint32(elf.PT_LOAD), Flags: rw, Filesz: n, Memsz: n, Align: pageSize},
		{Type: uint32(elf.PT_DYNAMIC), Flags: rw, Off: dynamic, Vaddr: dynamic, Paddr: dynamic, Filesz: n - dynamic, Memsz: n - dynamic, Align: 8},
		{Type: uint32(elf.PT_GNU_STACK), Flags: rw, Align: 16}, // else the loader makes stacks executable
	})
	return out.Bytes()
}

// hash is the table by which symbols are found: buckets hold the first symbol of a
// hash, and chain the next one.
func (l *sharedLibrary) hash() []uint32 {
	n := uint32(len(l.symbols))
	buckets := max(1, n/2)
	table := make([]uint32, 2+buckets+1+n) // symbol 0 is none
	table[0], table[1] = buckets, n+1
	first, chain := table[2:2+buckets], table[2+buckets:]
	for i, s := range l.symbols {
		b := hashOf(s.name) % buckets
		chain[i+1], first[b] = first[b], uint32(i+1)
	}
	return table
}

// hashOf is the hash function of System V.
func hashOf(s string) uint32 {
	var h uint32
	for _, c := range []byte(s) {
		h = h<<4 + uint32(c)
		g := h & 0xf0000000
		h = (h ^ g>>24) &^ g
	}
	return h
}

func (l *sharedLibrary) symtab(strings *names) []elf.Sym64 {
	table := make([]elf.Sym64, 1, len(l.symbols)+2)
	for _, s := range l.symbols {
		table = append(table, elf.Sym64{Name: strings.add(s.name), Info: elf.ST_INFO(elf.STB_GLOBAL, elf.STT_FUNC),
			Shndx: uint16(elf.SHN_ABS), Value: s.address})
	}
	return table
}

func (l *sharedLibrary) versym() []uint16 {
	table := make([]uint16, len(l.symbols)+1)
	for i := range l.symbols {
		table[i+1] = versionOwn
	}
	return table
}

// verdefEntry is one Elf64_Verdef with its one Elf64_Verdaux.
type verdefEntry struct {
	Version, Flags, Index, Count uint16
	Hash, Aux, Next              uint32
	Name, NextName               uint32
}

const (
	verdefSize    = 28
	verdefAux     = 20
	versionIsBase = 1
)

func (l *sharedLibrary) verdef(strings *names) []verdefEntry {
	entry := func(name string, index, flags uint16) verdefEntry {
		return verdefEntry{Version: 1, Flags: flags, Index: index, Count: 1, Hash: hashOf(name), Aux: verdefAux, Name: strings.add(name)}
	}
	base, own := entry(l.soname, versionGlobal, versionIsBase), entry(l.version, versionOwn, 0)
	base.Next = verdefSize
	return []verdefEntry{base, own}
}

// put writes fixed-size values, which cannot fail into memory.
func put(to *bytes.Buffer, v any) {
	if err := binary.Write(to, binary.LittleEndian, v); err != nil {
		panic(err) // a type of this file is not of fixed size
	}
}
