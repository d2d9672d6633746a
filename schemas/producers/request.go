package main

import "encoding/binary"

// request is {"v": 1, "id": id, "pipeline": pipeline, "samples": [{"text": text}, ...], "timeout_ms": timeoutMs}.
func request(id, pipeline string, texts []string, timeoutMs uint64) []byte {
	out := header(nil, 0x80, 0xde, 5)
	out = integer(str(out, "v"), 1)
	out = str(str(out, "id"), id)
	out = str(str(out, "pipeline"), pipeline)
	out = header(str(out, "samples"), 0x90, 0xdc, len(texts))
	for _, text := range texts {
		out = header(out, 0x80, 0xde, 1)
		out = str(str(out, "text"), text)
	}
	return integer(str(out, "timeout_ms"), timeoutMs)
}

// header begins a map (0x80, 0xde) of so many pairs or a list (0x90, 0xdc) of so many items; up to 65,535.
func header(out []byte, short, long byte, length int) []byte {
	if length < 16 {
		return append(out, short|byte(length))
	}
	return binary.BigEndian.AppendUint16(append(out, long), uint16(length))
}

func str(out []byte, text string) []byte {
	switch length := len(text); { // bytes of UTF-8
	case length < 32:
		out = append(out, 0xa0|byte(length))
	case length < 1<<8:
		out = append(out, 0xd9, byte(length))
	case length < 1<<16:
		out = binary.BigEndian.AppendUint16(append(out, 0xda), uint16(length))
	default:
		out = binary.BigEndian.AppendUint32(append(out, 0xdb), uint32(length))
	}
	return append(out, text...)
}

// integer writes the shortest form, though a reader takes any.
func integer(out []byte, value uint64) []byte {
	switch {
	case value < 1<<7:
		return append(out, byte(value))
	case value < 1<<8:
		return append(out, 0xcc, byte(value))
	case value < 1<<16:
		return binary.BigEndian.AppendUint16(append(out, 0xcd), uint16(value))
	case value < 1<<32:
		return binary.BigEndian.AppendUint32(append(out, 0xce), uint32(value))
	}
	return binary.BigEndian.AppendUint64(append(out, 0xcf), value)
}
