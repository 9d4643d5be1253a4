package deploy

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// speakers are the folders whose code tells people something: errors, findings, metrics.
var speakers = []string{"host", "plugins", "sdk", "internal/outbox", "internal/wire"}

// source is the product's code, parsed. It is searched by name and not by type, which takes a tenth of a second.
type source struct {
	fset  *token.FileSet
	files map[string][]*ast.File // by directory
}

func parseSource(t *testing.T) *source {
	t.Helper()
	s := &source{fset: token.NewFileSet(), files: map[string][]*ast.File{}}
	for _, root := range speakers {
		err := filepath.WalkDir(filepath.Join("..", root), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			f, err := parser.ParseFile(s.fset, path, nil, parser.SkipObjectResolution)
			s.files[filepath.Dir(path)] = append(s.files[filepath.Dir(path)], f)
			return err
		})
		require.NoError(t, err)
	}
	return s
}

// each visits every node of the files in a directory.
func (s *source) each(dir string, visit func(ast.Node)) {
	for _, f := range s.files[dir] {
		ast.Inspect(f, func(n ast.Node) bool {
			visit(n)
			return true
		})
	}
}

func (s *source) at(n ast.Node) string {
	p := s.fset.Position(n.Pos())
	return fmt.Sprintf("%s:%d", strings.TrimPrefix(filepath.ToSlash(p.Filename), "../"), p.Line)
}

// code is how a code looks; a code that is put together ends in "…" after its constant part.
var code = regexp.MustCompile(`^[a-z][a-z0-9]*(_[a-z0-9]+)*$`)

// codes finds every error code and code of a finding, with a place that reports it. A code is a constant text that
// becomes something called code: a parameter, a field, a variable, a constant that begins with Code.
func (s *source) codes() map[string]string {
	found := map[string]string{}
	take := func(e ast.Expr) {
		sum, ok := e.(*ast.BinaryExpr)
		if ok {
			e = sum.X
		}
		text, isText := literal(e)
		switch {
		case ok && isText && strings.HasSuffix(text, "_"):
			found[text+"…"] = s.at(e)
		case !ok && isText && code.MatchString(text):
			found[text] = s.at(e)
		}
	}
	params := s.places(func(f *ast.File, n ast.Node) (string, *ast.FieldList) {
		switch n := n.(type) {
		case *ast.FuncDecl:
			return n.Name.Name, n.Type.Params
		case *ast.AssignStmt: // name := func(…)
			if l, ok := n.Rhs[0].(*ast.FuncLit); ok && len(n.Lhs) == 1 {
				return nameOf(n.Lhs[0]), l.Type.Params
			}
		}
		return "", nil
	})
	fields := s.places(func(_ *ast.File, n ast.Node) (string, *ast.FieldList) {
		if spec, ok := n.(*ast.TypeSpec); ok {
			if st, ok := spec.Type.(*ast.StructType); ok {
				return spec.Name.Name, st.Fields
			}
		}
		return "", nil
	})
	for dir := range s.files {
		s.each(dir, func(n ast.Node) {
			switch n := n.(type) {
			case *ast.KeyValueExpr:
				if isCode(nameOf(n.Key)) {
					take(n.Value)
				}
			case *ast.CallExpr:
				if i, ok := params[nameOf(n.Fun)]; ok && i < len(n.Args) {
					take(n.Args[i])
				}
			case *ast.CompositeLit:
				if i, ok := fields[nameOf(n.Type)]; ok && i < len(n.Elts) {
					take(n.Elts[i])
				}
			case *ast.AssignStmt:
				for i, l := range n.Lhs {
					if isCode(nameOf(l)) && len(n.Lhs) == len(n.Rhs) {
						take(n.Rhs[i])
					}
				}
			case *ast.ValueSpec:
				for i, l := range n.Names {
					if strings.HasPrefix(l.Name, "Code") || strings.HasPrefix(l.Name, "code") {
						take(at(n.Values, i))
					}
				}
			}
		})
	}
	return found
}

// places tells at which place of a list of parameters or fields the code stands, by the name of function or type.
func (s *source) places(lists func(*ast.File, ast.Node) (string, *ast.FieldList)) map[string]int {
	places := map[string]int{}
	for _, files := range s.files {
		for _, f := range files {
			ast.Inspect(f, func(n ast.Node) bool {
				name, list := lists(f, n)
				if list == nil {
					return true
				}
				i := 0
				for _, field := range list.List {
					for _, id := range field.Names {
						if isCode(id.Name) {
							places[name] = i
						}
						i++
					}
					if field.Names == nil {
						i++
					}
				}
				return true
			})
		}
	}
	return places
}

// metrics finds the name of every metric, with the place that names it. The host's are made by desc, those of
// plugins are the names of an sdk.Metric.
func (s *source) metrics(t *testing.T) map[string]string {
	found := map[string]string{}
	const telemetry = "../host/telemetry"
	s.each(telemetry, func(n ast.Node) {
		if call, ok := n.(*ast.CallExpr); ok && nameOf(call.Fun) == "desc" {
			if text, ok := literal(call.Args[0]); ok { // else it is one of a plugin's
				found["relevo_"+text] = s.at(n)
			}
		}
	})
	require.NotEmpty(t, found, "%s makes no metric by desc any more: teach this test how it does", telemetry)
	for dir := range s.files {
		if !strings.HasPrefix(dir, "../plugins/") {
			continue
		}
		s.each(dir, func(n ast.Node) {
			for _, e := range metricNames(n) {
				names := s.texts(dir, e)
				require.NotEmpty(t, names, "%s: the name of a metric must come from a constant text", s.at(e))
				for _, name := range names {
					found["relevo_plugin_"+name] = s.at(e)
				}
			}
		})
	}
	return found
}

// metricNames returns what stands at Name in an sdk.Metric{…} or in the elements of a []sdk.Metric{…}.
func metricNames(n ast.Node) (names []ast.Expr) {
	l, ok := n.(*ast.CompositeLit)
	if !ok {
		return nil
	}
	of := l.Type
	if a, ok := of.(*ast.ArrayType); ok {
		of = a.Elt
	}
	if nameOf(of) != "Metric" {
		return nil
	}
	for _, e := range l.Elts {
		switch e := e.(type) {
		case *ast.CompositeLit:
			names = append(names, metricNames(&ast.CompositeLit{Type: of, Elts: e.Elts})...)
		case *ast.KeyValueExpr:
			if nameOf(e.Key) == "Name" {
				names = append(names, e.Value)
			}
		}
	}
	return names
}

// texts are the constant texts that e may stand for: itself, or what is assigned to something of its name.
func (s *source) texts(dir string, e ast.Expr) (texts []string) {
	if text, ok := literal(e); ok {
		return []string{text}
	}
	name := nameOf(e)
	add := func(to string, e ast.Expr) {
		if text, ok := literal(e); ok && to == name {
			texts = append(texts, text)
		}
	}
	s.each(dir, func(n ast.Node) {
		switch n := n.(type) {
		case *ast.KeyValueExpr:
			add(nameOf(n.Key), n.Value)
		case *ast.AssignStmt:
			for i, l := range n.Lhs {
				add(nameOf(l), at(n.Rhs, i))
			}
		case *ast.ValueSpec:
			for i, l := range n.Names {
				add(l.Name, at(n.Values, i))
			}
		}
	})
	slices.Sort(texts)
	return slices.Compact(texts)
}

func isCode(name string) bool { return name == "code" || name == "Code" }

// nameOf is the last part of a name: Code of e.Code; "" of anything else.
func nameOf(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	}
	return ""
}

func literal(e ast.Expr) (string, bool) {
	l, ok := e.(*ast.BasicLit)
	if !ok || l.Kind != token.STRING {
		return "", false
	}
	text, err := strconv.Unquote(l.Value)
	return text, err == nil
}

func at(es []ast.Expr, i int) ast.Expr {
	if i < len(es) {
		return es[i]
	}
	return nil
}
